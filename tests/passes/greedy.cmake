if(TARGET bucketd::planner AND TARGET bucketd::io)
  find_package(nlohmann_json REQUIRED)
  bucketd_test(greedy_test
    LABELS fast
    SOURCES
      greedy_peers_test.cc
      greedy_property_test.cc
      greedy_test.cc
      greedy_upstream_test.cc
      pass_test_util.cc
    DEPS bucketd::planner bucketd::io nlohmann_json::nlohmann_json)
  bucketd_test(torch_model_test
    LABELS fast
    SOURCES torch_model_test.cc
    DEPS bucketd::planner)
endif()
