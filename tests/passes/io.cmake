bucketd_test(graph_io_test LABELS fast SOURCES fx_json_test.cc proto_io_test.cc DEPS bucketd::io)
