if(TARGET bucketd::planner AND TARGET bucketd::io)
  bucketd_test(overlap_test
    LABELS fast
    SOURCES pass_test_util.cc overlap_test.cc overlap_memory_test.cc stable_sort_test.cc
    DEPS bucketd::planner bucketd::io)
endif()
