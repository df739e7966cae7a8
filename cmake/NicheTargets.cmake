# niche_library(NAME SOURCES ... [PUBLIC libs] [PRIVATE libs]): one static, position-independent target a folder.
# niche_test(NAME SOURCES ... LABEL unit|stress|fault|fuzz [LIBS ...] [TIMEOUT s] [GROUPS ...] [SERIAL] [SANITIZED | RACES]): one
# GoogleTest program, registered with CTest case by case and labelled.
#   GROUPS: of these ("Suite.Case") all parameters are one test of CTest, in one process, where a process's start costs more than
#     a parameter; a failure names its parameters.
#   SERIAL: no other test beside it.
#   SANITIZED: of the concurrent parts and the parsers, also built by niche_sanitized_tests and run under the sanitizers in CI.
#   RACES: under the thread sanitizer alone.
add_custom_target(niche_sanitized_tests)

add_library(niche_flags INTERFACE)
target_include_directories(niche_flags INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>)
target_compile_options(niche_flags INTERFACE -Wall -Wextra -fvisibility-inlines-hidden
  $<$<BOOL:${NICHE_WERROR}>:-Werror>)
if(NICHE_SANITIZE STREQUAL "thread")
  # GCC cannot instrument atomic_thread_fence; the code that needs one has a sanitizer-visible twin.
  target_compile_options(niche_flags INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(niche_flags INTERFACE -fsanitize=thread)
elseif(NICHE_SANITIZE STREQUAL "address")
  target_compile_options(niche_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined
    -fno-omit-frame-pointer)
  target_link_options(niche_flags INTERFACE -fsanitize=address,undefined)
elseif(NICHE_SANITIZE)
  message(FATAL_ERROR "NICHE_SANITIZE=${NICHE_SANITIZE}: use address, thread or leave it empty")
endif()

function(niche_library name)
  cmake_parse_arguments(A "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(niche_${name} STATIC ${A_SOURCES})
  add_library(niche::${name} ALIAS niche_${name})
  target_link_libraries(niche_${name} PUBLIC niche_flags Threads::Threads ${A_PUBLIC} PRIVATE ${A_PRIVATE})
endfunction()

function(niche_test name)
  cmake_parse_arguments(A "SANITIZED;RACES;SERIAL" "LABEL;TIMEOUT" "SOURCES;LIBS;GROUPS" ${ARGN})
  if(A_SANITIZED OR (A_RACES AND NICHE_SANITIZE STREQUAL "thread"))
    string(APPEND A_LABEL "_sanitized")  # one label: gtest_discover_tests cannot pass a list
    add_dependencies(niche_sanitized_tests ${name})
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE ${A_LIBS} GTest::gtest GTest::gtest_main)
  # A test's own text, not what it tests: half the time to compile (dispatcher_test.cc: 8.5 s of CPU time for 16.3).
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1 -g1>)
  set(_properties LABELS "${A_LABEL}" TIMEOUT ${A_TIMEOUT} RUN_SERIAL ${A_SERIAL})
  set(_others)
  foreach(_group ${A_GROUPS})
    add_test(NAME "${_group}" COMMAND ${name} "--gtest_filter=${_group}/*")
    set_tests_properties("${_group}" PROPERTIES ${_properties} FAIL_REGULAR_EXPRESSION "Running 0 tests")
    list(APPEND _others "${_group}/*")
  endforeach()
  if(_others)
    list(JOIN _others ":" _others)
    set(_others TEST_FILTER "-${_others}")
  endif()
  gtest_discover_tests(${name} ${_others} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES ${_properties})
endfunction()
