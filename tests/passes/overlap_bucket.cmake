if(TARGET bucketd::planner AND TARGET bucketd::io)
  bucketd_test(overlap_bucket_test
    LABELS fast
    SOURCES pass_test_util.cc overlap_bucket_test_util.cc overlap_bucket_test.cc overlap_bucket_mode_test.cc
    DEPS bucketd::planner bucketd::io)
endif()
