find_package(nlohmann_json REQUIRED)
bucketd_test(vectors_test LABELS fast SOURCES vectors_test.cc DEPS bucketd::io nlohmann_json::nlohmann_json)
