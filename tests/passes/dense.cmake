if(TARGET bucketd::planner AND TARGET bucketd::io)
  bucketd_test(dense_test
    LABELS fast
    SOURCES pass_test_util.cc dense_regions_test.cc
    DEPS bucketd::planner bucketd::io)
endif()
