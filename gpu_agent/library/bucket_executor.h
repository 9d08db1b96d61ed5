/* libbucket_executor: runs a plan's buckets inside of a trainer's process. Plain C, for whoever
 * cannot link C++ (client/python/bucketd/executor.py loads it). exec/executor.h says what each call
 * means; nothing here but Wait and Open blocks.
 *
 * Calls that can fail return 0 or null and set *error to a text that the caller frees with
 * bucket_free. Enumerations are those of passes/base/types.h. Thread-safe, but for Open and Close.
 */
#ifndef BUCKETD_GPU_AGENT_LIBRARY_BUCKET_EXECUTOR_H_
#define BUCKETD_GPU_AGENT_LIBRARY_BUCKET_EXECUTOR_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BUCKET_API __attribute__((visibility("default")))

#define BUCKET_EXECUTOR_ABI 2
BUCKET_API int32_t bucket_executor_abi(void);

typedef struct bucket_executor bucket_executor;

typedef struct {
  void* data;
  int64_t elements;
  int32_t dtype;
} bucket_tensor;

typedef struct {
  const char* name; /* for messages */
  int32_t channel;  /* index of bucket_channel */
  int32_t kind;     /* CollectiveKind */
  int32_t op;       /* ReduceOp */
  int32_t dtype;    /* on the wire */
  int32_t mode;     /* BucketMode */
  int32_t members;
  const int64_t* counts; /* of members: elements a rank, as Collective::count */
} bucket_spec;

/* One process group of this host, over unix sockets. */
typedef struct {
  const char* mesh_dim;
  int32_t lane;
  int32_t rank, size;
  const char* group; /* the same text for all ranks of this group and for no other */
} bucket_channel;

typedef struct {
  const uint8_t* plan; /* 32 bytes: what plan this is; ranks of another one are refused */
  const bucket_spec* buckets;
  int32_t bucket_count;
  const int32_t* turns; /* bucket b starts: b; is waited for: -1 - b */
  int32_t turn_count;
  const bucket_channel* channels;
  int32_t channel_count;
  const char* folder; /* where the ranks of this host meet: of this user alone, a short path */
  const char* token;  /* the job's secret, at least 16 bytes */
  uint64_t epoch;
  double timeout_seconds;
  int32_t gloo_order; /* sums in the order of gloo's rings instead of NCCL's */
} bucket_executor_options;

/* Connects, and compares plans with the other ranks before anything moves. */
BUCKET_API bucket_executor* bucket_executor_open(const bucket_executor_options* options,
                                                 char** error);
/* Aborts what is under way. */
BUCKET_API void bucket_executor_close(bucket_executor* executor);

/* A ticket above 0. Tensors, one a member, are host memory and stay until the ticket is done. */
BUCKET_API int64_t bucket_executor_start(bucket_executor* executor, int32_t bucket,
                                         const bucket_tensor* in, const bucket_tensor* out,
                                         char** error);
/* 1 once the results are in `out`. A ticket is waited for once. */
BUCKET_API int32_t bucket_executor_wait(bucket_executor* executor, int64_t ticket, double seconds,
                                        char** error);
/* Of the last waited-for run of a bucket: copy-in, wire, copy-out, in picoseconds. 0: none yet. */
BUCKET_API int32_t bucket_executor_times(bucket_executor* executor, int32_t bucket,
                                         int64_t times_ps[3]);
BUCKET_API void bucket_executor_abort(bucket_executor* executor, const char* why);

/* What this process says of its buckets to its node's agent, which may come and go: records in
 * memory that the agent reads (gpu_agent/telemetry). Nothing of it waits for an agent. */
typedef struct bucket_telemetry bucket_telemetry;
/* `agent` is the path of the agent's socket, `job` at most 47 printable characters. */
BUCKET_API bucket_telemetry* bucket_telemetry_open(const char* agent, const char* job,
                                                   char** error);
/* After the executors that report to it. */
BUCKET_API void bucket_telemetry_close(bucket_telemetry* telemetry);
/* What records say from then on: the most memory that this process took beyond what it had before
 * its first plan. */
BUCKET_API void bucket_telemetry_peak(bucket_telemetry* telemetry, int64_t bytes);
/* Records that were lost because no agent read those before. */
BUCKET_API uint64_t bucket_telemetry_dropped(const bucket_telemetry* telemetry);

/* What the plan says that a run takes. */
typedef struct {
  int32_t part; /* GraphPart */
  int64_t total_ps, exposed_ps, peak_bytes;
  const int64_t* wire_ps; /* of each bucket */
} bucket_prediction;
/* From then on each bucket that was waited for is a record. Before the first start. `options` are
 * those of bucket_executor_open. */
BUCKET_API void bucket_executor_report(bucket_executor* executor,
                                       const bucket_executor_options* options,
                                       bucket_telemetry* telemetry,
                                       const bucket_prediction* prediction);

BUCKET_API void bucket_free(char* text);

#ifdef __cplusplus
}
#endif

#endif /* BUCKETD_GPU_AGENT_LIBRARY_BUCKET_EXECUTOR_H_ */
