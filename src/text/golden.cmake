# The compressed vocabularies of tests/golden/vocab, unpacked for text_test.
if(TARGET text_test)
  find_program(TALLY_XZ xz REQUIRED)
  set(vocab_dir ${CMAKE_BINARY_DIR}/golden/vocab)
  file(MAKE_DIRECTORY ${vocab_dir})
  file(GLOB vocab_packed CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/golden/vocab/*.gguf.xz)
  set(vocab_files)
  foreach(packed ${vocab_packed})
    get_filename_component(name ${packed} NAME_WLE)
    add_custom_command(OUTPUT ${vocab_dir}/${name}
                       COMMAND ${TALLY_XZ} --decompress --stdout ${packed} > ${vocab_dir}/${name}
                       DEPENDS ${packed} VERBATIM)
    list(APPEND vocab_files ${vocab_dir}/${name})
  endforeach()
  add_custom_target(text_golden_vocab DEPENDS ${vocab_files})
  # What a release has to prove by the clock, without the rest of the room's tests.
  add_executable(text_worst_case_test ${CMAKE_SOURCE_DIR}/src/text/worst_case_test.cc)
  target_link_libraries(text_worst_case_test PRIVATE tally_options tally_text GTest::gtest_main)
  target_compile_definitions(text_worst_case_test PRIVATE TALLY_GOLDEN_VOCAB_DIR="${vocab_dir}")
  add_dependencies(text_worst_case_test text_golden_vocab)
  add_dependencies(text_test text_golden_vocab)
  target_compile_definitions(text_test PRIVATE TALLY_GOLDEN_VOCAB_DIR="${vocab_dir}")
endif()
