if(TARGET bucketd::planner AND TARGET bucketd::io)
  find_package(nlohmann_json REQUIRED)
  bucketd_test(cost_test
    LABELS fast
    SOURCES cost_test.cc pass_test_util.cc
    DEPS bucketd::planner bucketd::io nlohmann_json::nlohmann_json)
endif()
