"""A plan's buckets run by libbucket_executor instead of torch.distributed: laid out once, copied in and out in one pass
each, launched in the plan's order over connections, or communicators, of their own.

On the CPU for ranks of one host; on GPUs (on_device.py) no whole training has been shown to run. What is in no bucket stays with
torch.distributed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import logging
import operator
import os
import struct
import time
import weakref

import torch

from . import bucket_library as library
from . import bucket_ops, gloo_sums, on_device
from .agreement import hearing_signals
from .errors import ExecutorError
from .graph import ITEM_SIZE, CollectiveKind, NodeKind, ReduceOp, Role
from .plan import Plan, StepKind
from .telemetry import Memory
from .verify import slice_bytes

_PACKED, _GROUPED = 1, 2  # BucketMode
_COPIES = {"compute": 1, "comm": 2}  # CopyStream
_HEARING = 0.5  # seconds: in the library no signal is heard, so it is left that often

log = logging.getLogger("bucketd")


class Runner:
    """The buckets of one graph's plan. bucket_ops' operators in the rewritten graph call start() and wait(); open() comes before
    its first run, on all ranks. Buckets whose dtype or operation the library has not, or whose sums it would add otherwise than the plan
    promises (gloo_sums.py), stay with torch.distributed: all ranks agree on which (`takes_text`). ExecutorError where it can use the
    device for none. Not thread-safe.

    A run that an exception ends in its midst, on all ranks behind the same start, is followed by one from the beginning."""

    def __init__(self, graph, plan: Plan, device_type: str, timeout: float, telemetry=None, part: str = ""):
        """`telemetry` (telemetry.Telemetry) hears of every run; `part` of a step is what the graph is: "fw", "bw", "joint"."""
        self.plan = plan
        self._telemetry, self._part = telemetry, part
        self.watches = telemetry is not None  # begins() and ends() are called
        self.timeout = timeout
        self._graph = graph
        self._handle = None
        self._device = on_device.of(device_type)
        self.refused: dict[int, str] = {}  # bucket -> why, for people
        if plan.buckets:
            library.check_device(self._device.index)
        for k, bucket in enumerate(plan.buckets):
            spec = self._spec(k, 0)
            why = library.refuses(self._device.index, spec, bucket.group_size) or gloo_sums.why_other(
                plan, bucket, spec.counts[:spec.members], ITEM_SIZE[spec.dtype])
            if why:
                self.refused[k] = f"{self._name(k)}: {why}"
        # Bucket -> what the library calls it.
        self.ours = {k: at for at, k in enumerate(k for k in range(len(plan.buckets)) if k not in self.refused)}
        self._last = next((step.id for step in reversed(plan.order) if step.kind == StepKind.WAIT and step.id in self.ours), None)
        self._told = {k: (self._tensors_of(k), self._tensors_of(k)) for k in self.ours}
        self._is_there = operator.attrgetter(f"is_{self._device.type}")
        self._memory = Memory(_inputs(graph), self._device.memory)
        # Ticket, and the tensors that it uses, by bucket: they stay where the library cannot say that it is done with them.
        self._under_way: dict[int, tuple] = {}
        self._begun: set[int] = set()  # buckets that this run has started
        self.number = bucket_ops.enter(self)

    @property
    def takes_text(self) -> str:
        return f"bucketd, but for buckets {', '.join(map(str, self.refused))}" if self.refused else "bucketd"

    # -- called around the graph (bucket_ops.watcher)

    def begins(self) -> None:
        self._memory.begins()

    def ends(self) -> None:
        self._memory.ends()
        library.load().bucket_executor_peak(self._handle, self._memory.most)

    # -- called by the graph

    def start(self, bucket: int, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Launches when it is the bucket's turn. All tensors are contiguous, and stay until wait(): this holds them."""
        if self._handle is None:
            raise ExecutorError("the executor is not open")
        if not all(map(self._is_there, inputs)):
            other = next(x.device for x in inputs if not self._is_there(x))
            raise ExecutorError(f"{self._name(bucket)} is planned for {self._device.type}, of its tensors one is on {other}")
        if bucket in self._begun:
            if len(self._begun) < len(self.ours) or self._under_way:
                self._leave_last_run()
            self._begun.clear()
        told_in, told_out = self._told[bucket]
        ticket = library.call(
            library.load().bucket_executor_start, self._handle, self.ours[bucket], told_in.of(inputs), told_out.of(outputs),
            self._device.stream(), what=self._name(bucket))
        self._under_way[bucket] = ticket, inputs, outputs
        self._begun.add(bucket)

    def wait(self, bucket: int) -> list[torch.Tensor]:
        """Until the results are in the outputs of the start, which it returns; on a GPU it is the current stream that waits."""
        if bucket not in self._under_way:
            raise ExecutorError(f"{self._name(bucket)} is waited for and was not started")
        ticket, _, outputs = self._under_way[bucket]
        if self._device.index < 0:
            self._until_done(bucket, ticket)
        else:
            library.call(library.load().bucket_executor_join, self._handle, ticket, self._device.stream(), what=self._name(bucket))
        del self._under_way[bucket]
        if bucket == self._last and self._telemetry is not None:
            self._telemetry.ran()
        return outputs

    def _until_done(self, bucket: int, ticket: int) -> None:
        until = time.monotonic() + 2 * self.timeout
        while True:
            now = time.monotonic()
            patience = min(_HEARING, until - now)
            try:
                library.call(library.load().bucket_executor_wait, self._handle, ticket, patience, what=self._name(bucket))
                return
            except ExecutorError as error:
                # Where only patience has ended, the ticket stands; one that failed says so at once.
                if "DEADLINE_EXCEEDED" not in str(error) or time.monotonic() - now < patience or time.monotonic() >= until:
                    raise

    def check(self) -> None:
        """ExecutorError where what has been waited for is not right. The host waits for all that this rank has launched."""
        if self._handle is not None:
            self._device.settle()
            library.call(library.load().bucket_executor_health, self._handle, what=self._opened[0])

    def _name(self, bucket: int) -> str:
        return f"bucket {bucket} ({self.plan.buckets[bucket].name})"

    # -- opening

    def open(self, scope: str, agreement, epoch: int, planner=None) -> None:
        """Connects to the ranks of every group. ExecutorError where one of them does not come, or holds another plan.
        `planner` is a PlannerClient that all ranks have, or None."""
        if not self.ours:
            return
        digest = hashlib.sha256(self.plan.data).digest()
        folder, token = self._device.meeting_place(scope, agreement, self.timeout, planner, digest)
        with self._device.together(scope, agreement):
            channels, channel_of = self._channels(agreement.rank)
            specs = [self._spec(k, channel_of[self._group_of(k)]) for k in self.ours]
            turns = [self.ours[step.id] if step.kind == StepKind.START else -1 - self.ours[step.id]
                     for step in self.plan.order if step.kind != StepKind.NODE and step.id in self.ours]
            options = library.Options(
                plan=digest,
                buckets=(library.BucketSpec * len(specs))(*specs), bucket_count=len(specs),
                turns=(ctypes.c_int32 * len(turns))(*turns), turn_count=len(turns),
                channels=(library.Channel * len(channels))(*channels), channel_count=len(channels),
                folder=folder.encode(), token=token.encode(), epoch=epoch, timeout_seconds=self.timeout,
                gloo_order=self.plan.backend == "gloo", device=self._device.index, ends_process=_ends_process())
            size = library.call(library.load().bucket_executor_plan_bytes, ctypes.byref(options), what=scope)
            arena = self._device.arena(size)
            if arena is not None:
                options.arena, options.arena_bytes = arena.data_ptr(), arena.numel()
                self._memory.before += arena.numel()
        # The ranks meet in the agreement's folder, and may meet there again.
        self._opened = scope, options, arena, agreement
        self._connect()

    def _connect(self) -> None:
        scope, options, arena, _ = self._opened
        self._handle = hearing_signals(lambda _: library.call(library.load().bucket_executor_open, ctypes.byref(options), what=scope))
        self._closing = weakref.finalize(self, _close, self._handle, os.getpid(), scope, [self._device, arena, self._under_way])
        _devices.add(self._device)
        _once_at_exit(_settle)  # behind weakref.finalize's own function, and so called before it
        if self._telemetry is not None:
            self._telemetry.report(self._handle, options, self._part, self.plan, list(self.ours))

    def _leave_last_run(self) -> None:
        """Which an exception ended in its midst. An executor goes on where its plan is: if that is not the beginning, all ranks open
        another one. There a rank that is still in that run is missed; without that its buckets would be mixed up with a new run's."""
        scope = self._opened[0]
        try:
            for bucket in list(self._under_way):
                self.wait(bucket)
            if len(self._begun) < len(self.ours):
                log.info("bucketd: %s: the last run ended in its midst, so all ranks open its executor anew", scope)
                self._device.settle()
                before = self._closing
                self._connect()
                before()  # now that no rank uses its connections any more
        except ExecutorError as error:
            raise ExecutorError(f"{scope}: the last run ended in its midst, by an exception on this rank, and another one cannot begin: "
                                f"that takes all ranks, each of them stopped behind the same bucket ({error})") from error

    def _channels(self, rank: int):
        """The groups that buckets use, as this rank is in them."""
        used = sorted({self._group_of(k) for k in self.ours})
        channels = []
        for index in used:
            group = self._graph.groups[index]
            if rank not in group.ranks:
                raise ExecutorError(f"group {group.name} of ranks {list(group.ranks)} does not contain this process, rank {rank}")
            # Short: it is a part of a socket's path.
            name = hashlib.sha256(f"{group.mesh_dim}/{group.lane}/{group.ranks}".encode()).hexdigest()[:12]
            channels.append(library.Channel(
                group.mesh_dim.encode(), group.lane, group.ranks.index(rank), group.size, self._device.ranks_here(group, rank),
                name.encode(), self._device.communicator(group)))
        return channels, {index: at for at, index in enumerate(used)}

    def _first_node(self, k: int):
        return self._graph.nodes[self.plan.buckets[k].members[0]]

    def _tensors_of(self, k: int) -> _Tensors:
        return _Tensors(len(self.plan.buckets[k].members), int(self._first_node(k).outputs[0].dtype))

    def _group_of(self, k: int) -> int:
        return self._first_node(k).collective.group

    def _spec(self, k: int, channel: int) -> library.BucketSpec:
        bucket = self.plan.buckets[k]
        first = self._first_node(k)
        item = first.outputs[0].bytes // max(1, first.outputs[0].elements)
        counts = [slice_bytes(self._graph, m) // item for m in bucket.members]
        return library.BucketSpec(
            name=(bucket.name or f"#{k}").encode(), channel=channel, kind=int(CollectiveKind(first.collective.kind)),
            op=int(ReduceOp(first.collective.reduce_op)), dtype=int(first.outputs[0].dtype), mode=_PACKED if bucket.packed else _GROUPED,
            copies=_COPIES[bucket.copies], members=len(counts), counts=(ctypes.c_int64 * len(counts))(*counts))


_left: list = []  # what an executor that did not end may still use
_devices = weakref.WeakSet()  # of executors that are open
_once_at_exit = functools.cache(atexit.register)


def _settle() -> None:
    """What runs yet when the process ends may be what a peer waits for: it ends before the executors are closed."""
    for device in list(_devices):
        with contextlib.suppress(Exception):  # the close will tell what is wrong
            device.settle()


def _ends_process() -> bool:
    """Where an error comes behind a join, as torch.distributed's own watchdog of NCCL does by default, and does not by 0 and 2."""
    named = (os.environ.get(name) for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"))
    return next((value for value in named if value is not None), "") not in ("0", "2")


def _close(handle: int, owner: int, scope: str, used: list) -> None:
    if os.getpid() != owner:  # a forked child has none of its threads, whose end it would wait for, and its connections are the parent's
        return
    over, error = library.close(handle)
    if error:
        log.error("bucketd: %s: its executor ended by an error: %s", scope, error)
    if not over:
        _left.append(used)


def _inputs(graph) -> int:
    """Bytes of what a run finds, but for parameters and buffers."""
    return sum(output.bytes for node in graph.nodes if node.kind == NodeKind.PLACEHOLDER and node.role not in (Role.PARAMETER, Role.BUFFER)
               for output in node.outputs)


class _Tensors:
    """What the library is told of a bucket's tensors: memory that each start fills anew. A ctypes structure for each of them took as
    much time as all the rest of a start."""

    def __init__(self, members: int, dtype: int):
        self._memory = (library.Tensor * members)()
        self._layout = struct.Struct("Qqi4x" * members)  # library.Tensor
        self._dtype = dtype

    def of(self, tensors):
        words: list = []
        for x in tensors:
            words += (x.data_ptr(), x.numel(), self._dtype)
        self._layout.pack_into(self._memory, 0, *words)
        return self._memory
