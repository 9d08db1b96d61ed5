/* libbucket_executor: runs a plan's buckets inside of a trainer's process. Plain C, for whoever
 * cannot link C++ (client/python/bucketd/executor.py loads it). exec/executor.h says what each call
 * means.
 *
 * Errors: calls that can fail return 0 or null and set *error to a text that the caller frees with
 * bucket_free. After the first error of a bucket (a peer that died, a timeout, an abort) every
 * later call says it, and a new executor of a new epoch takes over. Enumerations are those of
 * passes/base/types.h.
 *
 * Errors behind a join: on a GPU a join returns before anything has run, so an error that comes
 * later makes undefined what the caller is already computing with. With `ends_process` (the safe
 * choice, and the Python client's) the process then ends by SIGABRT, with a line on standard error,
 * before anything behind the join runs. Without it the next start or join says the error, and
 * behind the last one health and close do.
 *
 * Threads: thread-safe, but for open and close. open, close and wait block, each to a limit that it
 * states; a start blocks where a communicator connects, to the timeout at most, and so do start,
 * join, wait and health of other threads meanwhile; nothing else does.
 *
 * Forks: a handle is its process's. In a child that was forked later, start, join, wait and health
 * say FAILED_PRECONDITION, and every other call does nothing at once: threads and locks did not
 * come along, and sockets and memory are the parent's. close is 1 there; the copy of the handle
 * stays.
 *
 * Memory: tensors and arena are the caller's. Tensors stay from start until wait was 1, or, on a
 * GPU, until what the caller enqueues behind join; after an error, and the arena always, until
 * close was 1.
 *
 * On a GPU (device >= 0) a bucket runs on streams of the executor's, ordered by events behind what
 * was on the caller's stream at its start and before what comes onto the caller's stream after its
 * join: the host waits for none of it, and neither call asks CUDA what has happened. The executor
 * launches in the plan's order, over all channels one behind the other. Beside collectives that the
 * caller launches on communicators of its own, NCCL wants one order of launches on all ranks, and
 * NCCL_LAUNCH_ORDER_IMPLICIT=1 (2.26 or newer).
 *
 * Graphs: the caller's stream may be in a capture, on all ranks alike. A capture holds whole runs
 * of the plan: where one begins or ends, every bucket that was started has been joined, and the
 * plan begins anew; else start and join say FAILED_PRECONDITION. The host waits there once for each
 * new list of tensors, while its table goes to the GPU. Tensors, arena and executor stay to the end
 * of the graph's last replay, for which close does not wait, and graphs are destroyed before the
 * close: NCCL ends no communicator that a graph holds (of one rank it holds none: close is 1 then,
 * and a later replay reads what was freed). Else close is 0, at its limit, and all that
 * graphs use is left to the process. Their communicators are aborted then: what a replay under way
 * or a later one writes is undefined, but it reads and writes nothing that was freed as long as
 * tensors and arena stay. Replays have no records; an abort ends those under way, as
 * the error of a peer does, but nobody sees one that hangs. NCCL's documentation says that CUDA has
 * been seen to deadlock where one thread launches graphs of several communicators, which those of
 * several channels are.
 */
#ifndef BUCKETD_GPU_AGENT_LIBRARY_BUCKET_EXECUTOR_H_
#define BUCKETD_GPU_AGENT_LIBRARY_BUCKET_EXECUTOR_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BUCKET_API __attribute__((visibility("default")))

#define BUCKET_EXECUTOR_ABI 7
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
  int32_t copies;   /* CopyStream, of a packed bucket. compute: on streams of their own, beside
                     * other buckets' wires; comm: on its channel's, in line with its wire */
  int32_t members;
  const int64_t* counts; /* of members: elements a rank, as Collective::count */
} bucket_spec;

/* One process group: of this host, over unix sockets; on a GPU, wherever its ranks are. */
typedef struct {
  const char* mesh_dim;
  int32_t lane;
  int32_t rank, size;
  int32_t on_this_host; /* how many of its ranks are */
  const char* group;    /* the same text for all ranks of this group and for no other */
  void* parent; /* on a GPU: the caller's ncclComm_t over the same ranks in the same order */
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
  int32_t device;     /* -1: host memory; else the GPU of that number in this process */
  /* On a GPU: memory of it for the plan's buckets, bucket_executor_plan_bytes or more, aligned to
   * 4096. Nobody meets in the folder there: it is any text that is this job's alone. token and
   * gloo_order are not read. */
  void* arena;
  int64_t arena_bytes;
  int32_t ends_process; /* 1: by an error behind a join, as above; 0: calls say it */
} bucket_executor_options;

/* 1: this process can use the device (host memory, that GPU); else UNAVAILABLE: there is none, or
 * no module or driver that fits, or it is too old or too full. It opens the device, so ask once, on
 * every rank, and let all ranks hear of it, before any opens. */
BUCKET_API int32_t bucket_executor_usable(int32_t device, char** error);
/* What is not right with a bucket of `ranks` ranks on a device that can be used is a text that the
 * caller frees: a dtype or an operation that there is none of. It begins with "UNAVAILABLE: " where
 * the NCCL is of no use here, whatever the bucket. Null: it can be run. */
BUCKET_API char* bucket_executor_refuses(int32_t device, const bucket_spec* bucket, int32_t ranks);
/* How large the arena is to be, above 0 even where no bucket wants any; arena and parents are not
 * read. */
BUCKET_API int64_t bucket_executor_plan_bytes(const bucket_executor_options* options, char** error);

/* Connects, and compares plans with the other ranks before anything moves; to the timeout. On a GPU
 * the communicators are split off the channels' parents, with nothing shared: all ranks open, when
 * what was launched on a parent has ended on every one of them, and launch nothing on it meanwhile;
 * NCCL may deadlock otherwise. Parents may block or not. Where a rank does not come, the
 * timeout of each split is kept, but the parent stays in it: abort it then (ncclCommAbort), and
 * neither launch on it nor destroy it. Refused where the NCCL that is found is not the one that was
 * in the process before, of which the parents are. */
BUCKET_API bucket_executor* bucket_executor_open(const bucket_executor_options* options,
                                                 char** error);
/* Aborts what is under way and waits for what runs, 10 seconds at most; a GPU's communicators then
 * have 5 seconds each to end. 1: nothing uses tensors or arena any more; 0: something may, a graph
 * that is not destroyed among others, so they must never be freed, and standard error says why. The
 * executor is gone either way. *error, whatever is returned: null, or the error that had ended the
 * executor, or that buckets were still under way which had been joined: whatever they were to write
 * is undefined then. */
BUCKET_API int32_t bucket_executor_close(bucket_executor* executor, char** error);

/* A ticket above 0. Tensors are one a member. `stream` is a cudaStream_t on a GPU (null: the
 * default stream), behind which the bucket runs; null on the host. */
BUCKET_API int64_t bucket_executor_start(bucket_executor* executor, int32_t bucket,
                                         const bucket_tensor* in, const bucket_tensor* out,
                                         void* stream, char** error);
/* On a GPU: what comes onto `stream` from now on runs when the results are in `out`. 1, or the
 * error that is known; of one that comes later see "Errors behind a join". The ticket must have had
 * its turn. A ticket is joined or waited for, once. */
BUCKET_API int32_t bucket_executor_join(bucket_executor* executor, int64_t ticket, void* stream,
                                        char** error);
/* 1 once the results are in `out`, at most so many seconds later: DEADLINE_EXCEEDED, and the ticket
 * stands. */
BUCKET_API int32_t bucket_executor_wait(bucket_executor* executor, int64_t ticket, double seconds,
                                        char** error);
/* 1, or the error that has ended the executor. Where the host has waited for all that came onto the
 * streams up to their joins, before a checkpoint for instance, 1 means that all of it is right. */
BUCKET_API int32_t bucket_executor_health(bucket_executor* executor, char** error);
BUCKET_API void bucket_executor_abort(bucket_executor* executor, const char* why);

/* What NCCL executors on GPUs use in this process: "NCCL 2.27.3 (libnccl.so.2)", a text that the
 * caller frees; null: there is none. Ranks with different ones cannot run buckets together. */
BUCKET_API char* bucket_executor_nccl(void);

/* What this process says of its buckets to its node's agent, which may come and go: records in
 * memory that the agent reads (gpu_agent/telemetry). Nothing of it waits for an agent. */
typedef struct bucket_telemetry bucket_telemetry;
/* `agent` is the path of the agent's socket, `job` at most 47 printable characters. */
BUCKET_API bucket_telemetry* bucket_telemetry_open(const char* agent, const char* job,
                                                   char** error);
/* After the executors that report to it. */
BUCKET_API void bucket_telemetry_close(bucket_telemetry* telemetry);
/* Records that were lost: because no agent read those before, or, of joined buckets, because more
 * of them were under way than are looked at, or the executor was closed before they were seen to be
 * done. */
BUCKET_API uint64_t bucket_telemetry_dropped(const bucket_telemetry* telemetry);

/* What the plan says that a run takes. */
typedef struct {
  int32_t part; /* GraphPart */
  int64_t exposed_ps, peak_bytes;
  const int64_t* wire_ps; /* of each bucket */
} bucket_prediction;
/* From then on each bucket that was waited for, or joined, is a record. Before the first start.
 * `options` are those of bucket_executor_open. 1; 0: all the same, but the agent compares some of
 * them with no prediction, or has no costs of them, since a process's ring has room for 30 plans
 * and for 16 groups of the executors that report to it. */
BUCKET_API int32_t bucket_executor_report(bucket_executor* executor,
                                          const bucket_executor_options* options,
                                          bucket_telemetry* telemetry,
                                          const bucket_prediction* prediction);
/* What records say from then on: the most memory that a run of the plan took, from the call of its
 * graph to its end, what was made for it before (all inputs but parameters and buffers, and a GPU's
 * arena) included; what the prediction's peak is of. 0: not seen yet. */
BUCKET_API void bucket_executor_peak(bucket_executor* executor, int64_t bytes);

BUCKET_API void bucket_free(char* text);

#ifdef __cplusplus
}
#endif

#endif /* BUCKETD_GPU_AGENT_LIBRARY_BUCKET_EXECUTOR_H_ */
