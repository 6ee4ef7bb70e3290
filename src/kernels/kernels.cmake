# One object library an ISA: files named <isa>.cc get that tier's flags, everything else the baseline (x86-64).
tally_room(kernels DEPS tensor base TEST_LIBS rapidcheck)

set(TALLY_FLAGS_avx2 -mavx2 -mfma -mf16c)
set(TALLY_FLAGS_avx512vnni ${TALLY_FLAGS_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512vbmi)
foreach(isa avx2 avx512vnni)
  file(GLOB_RECURSE isa_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/*${isa}.cc)
  if(isa_sources)
    set_source_files_properties(${isa_sources} PROPERTIES COMPILE_OPTIONS "${TALLY_FLAGS_${isa}};-Wno-maybe-uninitialized")
  endif()
endforeach()
