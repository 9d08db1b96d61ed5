if(TARGET bucketd::planner AND TARGET bucketd::io)
  bucketd_test(plan_test
    LABELS fast
    SOURCES pass_test_util.cc plan_io_test.cc plan_verify_test.cc
    DEPS bucketd::planner bucketd::io)
endif()
