"""A plan's buckets run by libbucket_executor instead of torch.distributed: laid out once, copied in and out in one pass
each, launched in the plan's order over connections of their own.

On the CPU, for ranks of one host. What is in no bucket stays with torch.distributed.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
import weakref

import torch

from . import bucket_library as library
from .agreement import await_key, hearing_signals
from .embedded import node_identity, run_folder
from .errors import ExecutorError, PlannerError
from .graph import CollectiveKind, DType, ReduceOp
from .plan import Plan, StepKind
from .verify import slice_bytes

_TORCH = {
    DType.F16: torch.float16, DType.BF16: torch.bfloat16, DType.F32: torch.float32, DType.F64: torch.float64,
    DType.U8: torch.uint8, DType.I8: torch.int8, DType.I16: torch.int16, DType.I32: torch.int32, DType.I64: torch.int64,
}
_PACKED, _GROUPED = 1, 2  # BucketMode
_HEARING = 0.5  # seconds: in the library no signal is heard, so it is left that often


class Runner:
    """The buckets of one graph's plan. `start` and `wait` stand in the rewritten graph; open() comes before its first
    run, on all ranks. Not thread-safe."""

    def __init__(self, graph, plan: Plan, timeout: float, telemetry=None, part: str = ""):
        """`telemetry` (telemetry.Telemetry) hears of every run; `part` of a step is what the graph is: "fw", "bw", "joint"."""
        self.plan = plan
        self._telemetry, self._part = telemetry, part
        self.timeout = timeout
        self._graph = graph
        self._handle = None
        self._first = next((step.id for step in plan.order if step.kind == StepKind.START), None)
        # Of each bucket: what its members are when they come off the wire.
        self._results = [[self._result(m) for m in bucket.members] for bucket in plan.buckets]

    def _result(self, member: int):
        tensor = self._graph.nodes[member].outputs[0]
        if tensor.dtype not in _TORCH:
            raise ExecutorError(f"node {member}: the executor runs no {DType(tensor.dtype).name.lower()} collectives")
        return tuple(tensor.shape), _TORCH[tensor.dtype], tensor.elements, int(tensor.dtype)

    # -- in the graph

    def start(self, bucket: int, inputs: list[torch.Tensor]):
        """Launches when it is the bucket's turn. What it returns is for wait(), and keeps the tensors alive."""
        if self._handle is None:
            raise ExecutorError("the executor is not open")
        if any(x.device.type != "cpu" for x in inputs):
            raise ExecutorError(
                f"executor=\"bucketd\" runs buckets in host memory, {self._name(bucket)} is on {inputs[0].device}: leave "
                f"executor= out there, and torch.distributed runs it")
        inputs = [x.contiguous() for x in inputs]
        outputs = [torch.empty(shape, dtype=dtype) for shape, dtype, _, _ in self._results[bucket]]
        dtypes = [dtype for _, _, _, dtype in self._results[bucket]]
        if bucket == self._first and self._telemetry is not None:
            self._telemetry.look_at_memory()
        ticket = library.call(
            library.load().bucket_executor_start, self._handle, bucket, _tensors(inputs, dtypes), _tensors(outputs, dtypes),
            what=self._name(bucket))
        return ticket, inputs, outputs

    def wait(self, bucket: int, started) -> list[torch.Tensor]:
        ticket, _, outputs = started
        until = time.monotonic() + 2 * self.timeout
        while True:
            now = time.monotonic()
            patience = min(_HEARING, until - now)
            try:
                library.call(library.load().bucket_executor_wait, self._handle, ticket, patience, what=self._name(bucket))
                return outputs
            except ExecutorError as error:
                # Where only patience has ended, the ticket stands; one that failed says so at once.
                if "DEADLINE_EXCEEDED" not in str(error) or time.monotonic() - now < patience or time.monotonic() >= until:
                    raise

    def times(self, bucket: int) -> tuple[int, int, int] | None:
        """Picoseconds of copy-in, wire and copy-out of the bucket's last run; None before that."""
        found = (ctypes.c_int64 * 3)()
        return tuple(found) if library.load().bucket_executor_times(self._handle, bucket, found) else None

    def _name(self, bucket: int) -> str:
        return f"bucket {bucket} ({self.plan.buckets[bucket].name})"

    # -- opening

    def open(self, scope: str, agreement, epoch: int, planner=None) -> None:
        """Connects to the ranks of every group. ExecutorError where one of them does not come, or holds another plan.
        `planner` is a PlannerClient that all ranks have, or None."""
        if not self.plan.buckets:
            return
        digest = hashlib.sha256(self.plan.data).digest()
        folder, token = meeting_place(scope, agreement, self.timeout, planner, digest)
        channels, channel_of = self._channels(agreement.rank)
        specs = [self._spec(k, channel_of) for k in range(len(self.plan.buckets))]
        turns = [step.id if step.kind == StepKind.START else -1 - step.id
                 for step in self.plan.order if step.kind != StepKind.NODE]
        options = library.Options(
            plan=digest,
            buckets=(library.BucketSpec * len(specs))(*specs), bucket_count=len(specs),
            turns=(ctypes.c_int32 * len(turns))(*turns), turn_count=len(turns),
            channels=(library.Channel * len(channels))(*channels), channel_count=len(channels),
            folder=folder.encode(), token=token.encode(), epoch=epoch, timeout_seconds=self.timeout,
            gloo_order=self.plan.backend == "gloo")
        loaded = library.load()
        self._handle = hearing_signals(lambda: library.call(loaded.bucket_executor_open, ctypes.byref(options), what=scope))
        weakref.finalize(self, loaded.bucket_executor_close, self._handle)
        if self._telemetry is not None:
            self._telemetry.report(self._handle, options, self._part, self.plan)

    def _channels(self, rank: int):
        """The groups that buckets use, as this rank is in them."""
        used = sorted({self._group_of(bucket) for bucket in self.plan.buckets})
        channels = []
        for index in used:
            group = self._graph.groups[index]
            if rank not in group.ranks:
                raise ExecutorError(f"group {group.name} of ranks {list(group.ranks)} does not contain this process, rank {rank}")
            # Short: it is a part of a socket's path.
            name = hashlib.sha256(f"{group.mesh_dim}/{group.lane}/{group.ranks}".encode()).hexdigest()[:12]
            channels.append(library.Channel(group.mesh_dim.encode(), group.lane, group.ranks.index(rank), group.size, name.encode()))
        return channels, {index: at for at, index in enumerate(used)}

    def _group_of(self, bucket) -> int:
        return self._graph.nodes[bucket.members[0]].collective.group

    def _spec(self, k: int, channel_of) -> library.BucketSpec:
        bucket = self.plan.buckets[k]
        first = self._graph.nodes[bucket.members[0]]
        dtype = first.outputs[0].dtype
        item = first.outputs[0].bytes // max(1, first.outputs[0].elements)
        counts = [slice_bytes(self._graph, m) // item for m in bucket.members]
        return library.BucketSpec(
            name=(bucket.name or f"#{k}").encode(), channel=channel_of[self._group_of(bucket)],
            kind=int(CollectiveKind(first.collective.kind)), op=int(ReduceOp(first.collective.reduce_op)), dtype=int(dtype),
            mode=_PACKED if bucket.packed else _GROUPED, members=len(counts), counts=(ctypes.c_int64 * len(counts))(*counts))


def _tensors(tensors, dtypes):
    return (library.Tensor * len(tensors))(*(
        library.Tensor(x.data_ptr(), x.numel(), dtype) for x, dtype in zip(tensors, dtypes)))


def meeting_place(scope: str, agreement, timeout: float, planner, plan: bytes) -> tuple[str, str]:
    """A folder of this user alone, and a secret. The leader makes the folder, and the others hear of it through the store;
    the secret is the planner's, for whoever holds the same plan. Without a planner it comes through the store as well:
    who reads that reads the secret, and still has to be this user on this host to get to the ring."""
    if agreement.store is None:
        return _new_place(agreement)["folder"], secrets.token_hex(32)
    key = f"{scope}/executor"
    agreement.store.set(f"{key}/{agreement.rank}", node_identity())
    if agreement.leader:
        nodes = {await_key(agreement.store, f"{key}/{rank}", timeout, f"rank {rank} opened no executor", ExecutorError)
                 for rank in agreement.ranks}
        if len(nodes) > 1:
            found = {"error": f"the ranks run on {len(nodes)} hosts; on the CPU the executor serves one"}
        else:
            found = _new_place(agreement)
            if planner is None:
                found["token"] = secrets.token_hex(32)
        agreement.store.set(key, json.dumps(found))
    else:
        found = json.loads(await_key(
            agreement.store, key, timeout, f"rank {agreement.ranks[0]} opened no executor", ExecutorError))
    if "error" in found:
        raise ExecutorError(found["error"])
    if planner is None:
        return found["folder"], found["token"]
    try:
        met = planner.rendezvous(
            f"executor/{found['group']}", agreement.ranks.index(agreement.rank), len(agreement.ranks),
            f"unix:{found['folder']}", plan, timeout)
    except PlannerError as error:
        raise ExecutorError(f"no secret from the planner: {error}") from error
    return found["folder"], met.token.hex()


def _new_place(agreement) -> dict[str, str]:
    folder = tempfile.mkdtemp(prefix="bx-", dir=run_folder())  # 0700 by contract of mkdtemp
    weakref.finalize(agreement, _remove, folder, os.getpid())
    return {"folder": folder, "group": secrets.token_hex(8)}


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # a forked child owns nothing
        shutil.rmtree(folder, ignore_errors=True)
