find_package(nlohmann_json REQUIRED)
bucketd_test(ir_test LABELS fast SOURCES canonical_test.cc graph_difference_test.cc normalize_test.cc DEPS bucketd::ir)
bucketd_test(vectors_test LABELS fast SOURCES vectors_test.cc
  DEPS bucketd::io nlohmann_json::nlohmann_json)
