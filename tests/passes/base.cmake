bucketd_test(digest_test LABELS fast SOURCES digest_test.cc DEPS bucketd::base)
