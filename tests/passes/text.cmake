if(TARGET bucketd::text AND TARGET bucketd::io)
  bucketd_test(bir_test LABELS fast SOURCES bir_test.cc bir_errors_test.cc DEPS bucketd::text bucketd::io)
endif()
