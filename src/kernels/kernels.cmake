# Files named <isa>.cc or *_<isa>.cc get that tier's flags, everything else the baseline (x86-64).
tally_room(kernels DEPS tensor base TEST_LIBS rapidcheck)

# For tests: a slow program that has every tier on any host with AVX2 and gives the same bits (`./check --long`).
option(TALLY_EMULATE_TIERS "Run the tiers above AVX2 with their instructions emulated" OFF)

set(TALLY_TIERS avxvnni avx512 avx512vnni amx)  # above AVX2: compiled a second time, emulated (tier.h)
set(TALLY_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(TALLY_FLAGS_avxvnni ${TALLY_FLAGS_avx2} -mavxvnni)
set(TALLY_FLAGS_avx512 ${TALLY_FLAGS_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
set(TALLY_FLAGS_avx512vnni ${TALLY_FLAGS_avx512} -mavx512vnni -mavx512vbmi)
# -fno-exceptions: what releases the tiles is a destructor, and would drag in a weak symbol of the unwinder.
set(TALLY_FLAGS_amx ${TALLY_FLAGS_avx512vnni} -mamx-tile -mamx-int8 -fno-exceptions)
if(TALLY_EMULATE_TIERS)
  foreach(isa ${TALLY_TIERS})
    set(TALLY_FLAGS_${isa} ${TALLY_FLAGS_avx2} -DTALLY_EMULATE -Wno-psabi -Wno-unused-function)
  endforeach()
  target_compile_definitions(tally_kernels PRIVATE TALLY_TIERS_ARE_EMULATED)
endif()
# gcc 12's avx512fintrin.h: `__m512i __Y = __Y`.
set(TALLY_ISA_WARNINGS -Wno-uninitialized $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set(emulated_sources)
foreach(isa avx2 ${TALLY_TIERS})
  file(GLOB_RECURSE isa_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/*${isa}.cc)
  set_source_files_properties(${isa_sources} PROPERTIES COMPILE_OPTIONS "${TALLY_FLAGS_${isa}};${TALLY_ISA_WARNINGS}")
  if(isa IN_LIST TALLY_TIERS)
    foreach(source ${isa_sources})
      file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR}/src ${source})
      set(copy ${CMAKE_BINARY_DIR}/emulated/${path})
      file(CONFIGURE OUTPUT ${copy} CONTENT "#include \"${path}\"\n" @ONLY)
      list(APPEND emulated_sources ${copy})
    endforeach()
  endif()
endforeach()
add_library(tally_kernels_emulated STATIC EXCLUDE_FROM_ALL ${emulated_sources})
target_compile_definitions(tally_kernels_emulated PRIVATE TALLY_EMULATE)
# -O1: SIMDe's functions take most of the compile time of all kernels otherwise.
target_compile_options(tally_kernels_emulated PRIVATE -O1 ${TALLY_FLAGS_avx2} ${TALLY_ISA_WARNINGS} -Wno-psabi
                                                      -Wno-unused-function)
target_link_libraries(tally_kernels_emulated PRIVATE tally_options PUBLIC tally_kernels)
target_link_libraries(kernels_test PRIVATE tally_kernels_emulated)

# ISA objects define no weak symbols: the linker could pick an AVX-512 copy of an inline function for everybody.
add_test(NAME kernels_isa_symbols
         COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DARCHIVE=$<TARGET_FILE:tally_kernels>
                 -P ${CMAKE_SOURCE_DIR}/src/kernels/isa_symbols.cmake)

file(GLOB_RECURSE kernels_benches CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/*_bench.cc)
add_executable(kernels_bench EXCLUDE_FROM_ALL ${kernels_benches})
target_link_libraries(kernels_bench PRIVATE tally_options tally_kernels benchmark::benchmark_main)
