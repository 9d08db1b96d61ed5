// An NCCL from before communicators had settings.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 21705;
  return 0;
}
