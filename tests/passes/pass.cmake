if(TARGET bucketd::planner AND TARGET bucketd::io)
  bucketd_test(pass_test
    LABELS fast
    SOURCES
      pass_test_util.cc
      pass_blocks_test.cc
      pass_bucketing_test.cc
      pass_entries_test.cc
      pass_payload_test.cc
      pass_pipeline_test.cc
      pass_schedule_test.cc
      pass_tags_test.cc
      pass_planner_test.cc
      pass_reductions_test.cc
    DEPS bucketd::planner bucketd::io)
endif()
