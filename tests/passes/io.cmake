bucketd_test(graph_io_test LABELS fast SOURCES fx_json_test.cc proto_io_test.cc DEPS bucketd::io)
bucketd_test(option_test LABELS fast SOURCES option_table_test.cc DEPS bucketd::io)
bucketd_test(import_test LABELS fast SOURCES import_test.cc DEPS bucketd::io)
