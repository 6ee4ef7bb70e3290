# A room is one static library of src/<name>, with its tests beside the code. The DEPS given here are the only rooms whose
# headers it may include; tools/tidy checks that the #include lines agree.

# tally_room(NAME DEPS room... LIBS target...)
#   src/<name>/**/*.cc  -> library tally_<name>    (files *_test.cc, *_bench.cc and *_fuzz.cc left out)
#   src/<name>/**/*_test.cc -> executable <name>_test, run by ctest from the top of the source tree
#   TEST_DEPS: rooms that only the tests use
#   HEADERS, TEST_HEADERS: heavy headers to precompile in instrumented builds and with TALLY_PRECOMPILE
#   JOIN: `sources`, `tests` or both: eight of them are compiled as one in instrumented builds

# Most of the time that instrumented code takes to compile goes into reading the same headers, and into the inline functions of
# theirs that each file compiles again: heavy headers are precompiled, and the files of the rooms with the heaviest are joined. The
# release build goes without, which proves that every file includes what it uses; that of ./quickstart precompiles too, for the
# same code in less time.
option(TALLY_PRECOMPILE "Precompile heavy headers in a build without sanitizers" OFF)
add_library(tally_joined INTERFACE)
target_compile_options(tally_joined INTERFACE -Wno-shadow)  # of the names of another file
function(tally_join target)
  if(TALLY_SANITIZE)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    target_link_libraries(${target} PRIVATE tally_joined)
  endif()
endfunction()

function(tally_precompile target)
  if(TALLY_SANITIZE OR (TALLY_PRECOMPILE AND ARGN))
    target_precompile_headers(${target} PRIVATE ${ARGN} <algorithm> <cmath> <functional> <map> <memory> <string> <vector>
                                                <fmt/format.h>)
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>
                                             $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)  # both for ccache
    # gcc 12 takes precompiled <string> for the file's own code, and sees copies beyond all bounds in it (its bug 105651).
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow;-Wno-array-bounds>)
  endif()
endfunction()

function(tally_room name)
  cmake_parse_arguments(ROOM "" "" "DEPS;LIBS;HEADERS;TEST_DEPS;TEST_LIBS;TEST_HEADERS;JOIN" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cc)
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz)\\.cc$")

  if(NOT sources)
    message(STATUS "room ${name} is empty")
    add_library(tally_${name} INTERFACE)
    return()
  endif()
  add_library(tally_${name} STATIC ${sources})
  target_include_directories(tally_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(tally_${name} PRIVATE tally_options)
  foreach(dep ${ROOM_DEPS})
    target_link_libraries(tally_${name} PUBLIC tally_${dep})
  endforeach()
  target_link_libraries(tally_${name} PUBLIC ${ROOM_LIBS})
  if(NOT name STREQUAL "kernels")  # kernels: its files have flags of their own
    tally_precompile(tally_${name} ${ROOM_HEADERS})
  endif()
  if("sources" IN_LIST ROOM_JOIN)
    tally_join(tally_${name})
  endif()

  if(tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE tally_options tally_${name} GTest::gtest_main GTest::gmock
                                               ${ROOM_TEST_LIBS})
    foreach(dep ${ROOM_TEST_DEPS})
      target_link_libraries(${name}_test PRIVATE tally_${dep})
    endforeach()
    if(NOT TALLY_SANITIZE)
      target_compile_options(${name}_test PRIVATE -O1)  # the rooms are what has to be fast
    endif()
    tally_precompile(${name}_test <gtest/gtest.h> ${ROOM_TEST_HEADERS} ${ROOM_HEADERS})
    if("tests" IN_LIST ROOM_JOIN)
      tally_join(${name}_test)
    endif()
    add_test(NAME ${name} COMMAND ${name}_test WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "RC_PARAMS=seed=1")
  endif()
endfunction()

# tally_embed(ROOM HEADER view=file,file... ...): files of web/ as the string views that the room's HEADER declares; a view is its
# files one after the other.
function(tally_embed room header)
  set(web ${CMAKE_SOURCE_DIR}/web)
  set(out ${CMAKE_BINARY_DIR}/${room}_assets.cc)
  set(views)
  set(files)
  foreach(view IN LISTS ARGN)
    string(REGEX MATCH "^([^=]+)=(.*)$" _ "${view}")
    set(name ${CMAKE_MATCH_1})
    string(REPLACE "," ";" paths "${CMAKE_MATCH_2}")
    list(TRANSFORM paths PREPEND ${web}/)
    list(APPEND files ${paths})
    string(REPLACE ";" "," joined "${paths}")
    list(APPEND views "${name}=${joined}")
  endforeach()
  add_custom_command(
    OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DHEADER=${header} -DNAMESPACE=tally::${room} "-DVIEWS=${views}"
            -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${CMAKE_SOURCE_DIR}/cmake/embed.cmake ${files}
    VERBATIM)
  target_sources(tally_${room} PRIVATE ${out})
endfunction()
