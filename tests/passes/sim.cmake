find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME sim_referee_test COMMAND Python3::Interpreter "${CMAKE_CURRENT_SOURCE_DIR}/sim_referee_test.py")
set_tests_properties(sim_referee_test PROPERTIES LABELS fast TIMEOUT 600
  ENVIRONMENT "BUCKETD_TEST_DATA=${CMAKE_SOURCE_DIR}/tests/data;BUCKETD_SOURCE_DIR=${CMAKE_SOURCE_DIR};BUCKETD_BIN=${CMAKE_BINARY_DIR}/bin")
