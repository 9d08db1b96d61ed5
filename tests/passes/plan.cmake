if(TARGET bucketd::planner AND TARGET bucketd::io)
  bucketd_test(plan_test
    LABELS fast
    SOURCES pass_test_util.cc plan_io_test.cc plan_verify_test.cc
    DEPS bucketd::planner bucketd::io)
endif()
if(TARGET bucketd::io)
  bucketd_executable(verdict_tool SOURCES verdict_tool.cc DEPS bucketd::io)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_test(NAME verdict_test COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/verdict_test.py")
  set_tests_properties(verdict_test PROPERTIES LABELS fast TIMEOUT 300
    ENVIRONMENT "BUCKETD_TEST_DATA=${CMAKE_SOURCE_DIR}/tests/data;BUCKETD_SOURCE_DIR=${CMAKE_SOURCE_DIR};BUCKETD_BIN=${CMAKE_BINARY_DIR}/bin")
endif()
