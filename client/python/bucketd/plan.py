"""A plan as the client holds it: bucketd.v1.Plan, parsed."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from typing import NamedTuple

from .errors import PlanRejected

FORMAT_VERSION = 1
_WHOSE = {"eager": "of eager FSDP2", "unplanned": "of the unplanned graph", "both": "of eager FSDP2 and of the unplanned graph",
          "neither": "neither of eager FSDP2 nor of the unplanned graph"}


class StepKind(enum.IntEnum):
    NODE = 0  # run a node
    START = 1  # start a bucket
    WAIT = 2  # wait for a bucket


class Step(NamedTuple):
    kind: StepKind
    id: int  # a node or a bucket


@dataclasses.dataclass(frozen=True)
class Bucket:
    members: tuple[int, ...]  # collectives, in payload order
    packed: bool  # one flat buffer, or one launch of many
    copies: str  # of a packed bucket: "compute", beside other buckets' wires, or "comm", in line with its own
    kind: str  # "all_gather", "reduce_scatter", "all_reduce"
    mesh_dim: str
    lane: int
    group_size: int
    reduce_op: str  # "" where nothing is reduced
    dtype: str  # "bf16", ...
    bytes: int
    offsets: tuple[int, ...]  # of each member in a rank's slice, in bytes
    slice_bytes: int
    name: str
    start_ps: int
    end_ps: int


@dataclasses.dataclass(frozen=True)
class Prediction:
    total_ps: int
    exposed_ps: int
    compute_ps: int
    comm_ps: int
    copies_ps: int
    peak_bytes: int
    collectives: int


@dataclasses.dataclass(frozen=True)
class Diagnostic:
    code: str
    text: str
    nodes: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The content of bucketd.v1.Plan (proto/plan.proto says what each field means). Ids are canonical."""

    data: bytes  # what it was parsed from
    graph_digest: bytes
    node_count: int
    buckets: tuple[Bucket, ...]
    order: tuple[Step, ...]
    numerics: str
    bits: str  # whose gradients have: "eager", "unplanned", "both", "neither"; "": not said
    bits_text: str  # the same in words, with why not the others'
    backend: str
    mode: str
    planner: str
    cost_profile: str
    prediction: Prediction
    program_order: Prediction
    lower_bound_ps: int
    diagnostics: tuple[Diagnostic, ...]

    @property
    def sha256(self) -> str:
        """The plan's identity: what ranks compare."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def speedup(self) -> float | None:
        """Predicted change of the step's time, -0.11 for 11 % less; None where nothing was predicted."""
        if self.program_order.total_ps <= 0 or self.prediction.total_ps <= 0:
            return None
        return self.prediction.total_ps / self.program_order.total_ps - 1

    def summary(self, source: str = "", inductor: bool = False) -> str:
        """One line: `37 buckets, predicted -11 %, plan ab12cd, bits of eager FSDP2, hit`. Under `inductor`, which rounds
        between nodes as it fuses them, a plan speaks of collectives alone: `sums of eager FSDP2`."""
        parts = [f"{len(self.buckets)} bucket{'' if len(self.buckets) == 1 else 's'}"]
        if self.speedup is not None:
            parts.append(f"predicted {100 * self.speedup:+.0f} %")
        parts.append(f"plan {self.sha256[:6]}")
        if self.bits:
            parts.append(f"{'sums' if inductor else 'bits'} {_WHOSE[self.bits]}")
        if source:
            parts.append(source)
        return ", ".join(parts)

    def table(self) -> str:
        """Buckets as a table, for people."""
        head = ("bucket", "collective", "over", "form", "members", "dtype", "bytes", "predicted us")
        rows = [
            (
                b.name or f"#{k}",
                b.kind + (f" {b.reduce_op}" if b.reduce_op else ""),
                f"{b.mesh_dim}" + (f"/{b.lane}" if b.lane else "") + f" ({b.group_size})",
                "packed" if b.packed else "grouped",
                str(len(b.members)),
                b.dtype,
                f"{b.bytes:,}",
                f"{b.start_ps / 1e6:.1f} - {b.end_ps / 1e6:.1f}",
            )
            for k, b in enumerate(self.buckets)
        ]
        right = (4, 6, 7)
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        lines = []
        for row in [head, tuple("-" * w for w in widths), *rows]:
            cells = (c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths)))
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


def parse(data: bytes) -> Plan:
    """PlanRejected where the bytes are no plan of a version that this client reads."""
    from ._wire.proto import plan_pb2  # an executor runs plans where protobuf is not

    message = plan_pb2.Plan()
    try:
        message.ParseFromString(data)
    except Exception as error:
        raise PlanRejected(f"{len(data)} bytes that are no bucketd.v1.Plan ({error})") from None
    if message.format_version != FORMAT_VERSION:
        raise PlanRejected(f"format version {message.format_version}, this client reads {FORMAT_VERSION}")
    return Plan(
        data=bytes(data),
        graph_digest=message.graph_digest,
        node_count=message.node_count,
        buckets=tuple(_bucket(b, k) for k, b in enumerate(message.buckets)),
        order=tuple(_step(value, at) for at, value in enumerate(message.order)),
        numerics=_name(plan_pb2.Numerics, "NUMERICS_", message.numerics),
        bits=_name(plan_pb2.Bits, "BITS_", message.bits),
        bits_text=message.bits_text,
        backend=message.backend,
        mode=message.provenance.mode,
        planner=message.provenance.planner,
        cost_profile=message.provenance.cost_profile,
        prediction=_prediction(message.prediction),
        program_order=_prediction(message.program_order),
        lower_bound_ps=message.lower_bound_ps,
        diagnostics=tuple(Diagnostic(d.code, d.text, tuple(d.nodes)) for d in message.diagnostics),
    )


def _name(enum_type, prefix: str, value: int) -> str:
    if value == 0:
        return ""
    try:
        return enum_type.Name(value)[len(prefix):].lower()
    except ValueError:
        raise PlanRejected(f"{enum_type.DESCRIPTOR.name} {value} is unknown to this client") from None


def _step(value: int, at: int) -> Step:
    kind = value & 3
    if kind > StepKind.WAIT:
        raise PlanRejected(f"element {value} has no meaning: its last two bits are {kind}", f"order[{at}]")
    return Step(StepKind(kind), value >> 2)


def _bucket(b, k: int) -> Bucket:
    from ._wire.proto import graph_pb2, plan_pb2

    if b.mode not in (plan_pb2.BUCKET_MODE_PACKED, plan_pb2.BUCKET_MODE_GROUPED):
        raise PlanRejected(f"mode {b.mode}, expected packed or grouped", f"bucket {k}")
    return Bucket(
        members=tuple(b.members),
        packed=b.mode == plan_pb2.BUCKET_MODE_PACKED,
        copies=_name(plan_pb2.CopyStream, "COPY_STREAM_", b.copies) or "compute",
        kind=_name(graph_pb2.CollectiveKind, "COLLECTIVE_KIND_", b.kind),
        mesh_dim=b.mesh_dim,
        lane=b.lane,
        group_size=b.group_size,
        reduce_op=_name(graph_pb2.ReduceOp, "REDUCE_OP_", b.reduce_op),
        dtype=_name(graph_pb2.DType, "DTYPE_", b.dtype),
        bytes=b.bytes,
        offsets=tuple(b.offsets),
        slice_bytes=b.slice_bytes,
        name=b.name,
        start_ps=b.start_ps,
        end_ps=b.end_ps,
    )


def _prediction(p) -> Prediction:
    return Prediction(p.total_ps, p.exposed_ps, p.compute_ps, p.comm_ps, p.copies_ps, p.peak_bytes, p.collectives)
