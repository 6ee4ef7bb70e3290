# Files named <isa>.cc get that tier's flags, everything else the baseline (x86-64).
tally_room(kernels DEPS tensor base TEST_LIBS rapidcheck)

# For tests on hosts without AVX-512: a slow program whose tier of that name gives the same bits (`./check --long`).
option(TALLY_EMULATE_AVX512 "Run the AVX-512 tier through SIMDe on any host with AVX2" OFF)

set(TALLY_FLAGS_avx2 -mavx2 -mfma -mf16c)
if(TALLY_EMULATE_AVX512)
  set(TALLY_FLAGS_avx512vnni ${TALLY_FLAGS_avx2} -DTALLY_EMULATE_AVX512 -Wno-psabi -Wno-unused-function)
  target_compile_definitions(tally_kernels PRIVATE TALLY_AVX512_IS_EMULATED)
else()
  set(TALLY_FLAGS_avx512vnni ${TALLY_FLAGS_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512vbmi)
endif()
# gcc 12's avx512fintrin.h: `__m512i __Y = __Y`.
set(TALLY_ISA_WARNINGS -Wno-uninitialized $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
foreach(isa avx2 avx512vnni)
  file(GLOB_RECURSE isa_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/*${isa}.cc)
  set_source_files_properties(${isa_sources} PROPERTIES COMPILE_OPTIONS "${TALLY_FLAGS_${isa}};${TALLY_ISA_WARNINGS}")
endforeach()

# The AVX-512 files once more with the instructions emulated (intrin512.h), for the tests of hosts without them.
set(emulated_sources)
foreach(source ${isa_sources})
  file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR}/src ${source})
  set(copy ${CMAKE_BINARY_DIR}/emulated/${path})
  file(CONFIGURE OUTPUT ${copy} CONTENT "#include \"${path}\"\n" @ONLY)
  list(APPEND emulated_sources ${copy})
endforeach()
add_library(tally_kernels_emulated STATIC EXCLUDE_FROM_ALL ${emulated_sources})
target_compile_definitions(tally_kernels_emulated PRIVATE TALLY_EMULATE_AVX512)
target_compile_options(tally_kernels_emulated PRIVATE ${TALLY_FLAGS_avx2} ${TALLY_ISA_WARNINGS} -Wno-psabi
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
