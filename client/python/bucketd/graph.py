"""The graph of one training step as plain data: what one rank captured (raw) and what all ranks share (normalised).

Ids are positions in program order. Enum values are those of proto/graph.proto; meanings are those of proto/GRAPH.md.
Nothing here needs torch.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from .errors import BucketdError


class GraphError(BucketdError):
    """A graph that cannot be captured, read or normalised. `node` names the place, where there is one."""

    reason = "GRAPH_UNSUPPORTED"

    def __init__(self, message: str, node: str = ""):
        super().__init__(message)
        self.node = node


class DType(enum.IntEnum):
    UNSPECIFIED = 0
    BOOL = 1
    U8 = 2
    I8 = 3
    I16 = 4
    I32 = 5
    I64 = 6
    F16 = 7
    BF16 = 8
    F32 = 9
    F64 = 10
    F8_E4M3 = 11
    F8_E5M2 = 12
    U16 = 13
    U32 = 14
    U64 = 15
    C64 = 16
    C128 = 17


# As torch calls them.
DTYPE_NAMES = {
    DType.BOOL: "bool",
    DType.U8: "uint8",
    DType.I8: "int8",
    DType.I16: "int16",
    DType.I32: "int32",
    DType.I64: "int64",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.F32: "float32",
    DType.F64: "float64",
    DType.F8_E4M3: "float8_e4m3fn",
    DType.F8_E5M2: "float8_e5m2",
    DType.U16: "uint16",
    DType.U32: "uint32",
    DType.U64: "uint64",
    DType.C64: "complex64",
    DType.C128: "complex128",
}

ITEM_SIZE = (0, 1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 1, 1, 2, 4, 8, 8, 16)


class NodeKind(enum.IntEnum):
    UNSPECIFIED = 0
    PLACEHOLDER = 1
    GET_ATTR = 2
    CALL = 3
    GETITEM = 4
    COLLECTIVE = 5
    WAIT = 6
    OUTPUT = 7


class CollectiveKind(enum.IntEnum):
    UNSPECIFIED = 0
    ALL_GATHER = 1
    REDUCE_SCATTER = 2
    ALL_REDUCE = 3
    ALL_TO_ALL = 4
    BROADCAST = 5


class ReduceOp(enum.IntEnum):
    NONE = 0
    SUM = 1
    AVG = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5
    BAND = 6
    BOR = 7
    BXOR = 8


class Role(enum.IntEnum):
    UNSPECIFIED = 0
    PARAMETER = 1
    BUFFER = 2
    INPUT = 3
    TANGENT = 4
    SAVED = 5


class SlotKind(enum.IntEnum):
    UNSPECIFIED = 0
    OUTPUT = 1
    PARAMETER_GRADIENT = 2
    INPUT_GRADIENT = 3
    SAVED = 4


class Direction(enum.IntEnum):
    UNSPECIFIED = 0
    FORWARD = 1
    BACKWARD = 2


class Tag(enum.IntEnum):
    NONE = 0
    FSDP_ALL_GATHER = 1
    FSDP_REDUCE_SCATTER = 2
    DDP_ALL_REDUCE = 3
    HSDP_ALL_REDUCE = 4


TAGS = {
    "fsdp_ag": Tag.FSDP_ALL_GATHER,
    "fsdp_rs": Tag.FSDP_REDUCE_SCATTER,
    "ddp_ar": Tag.DDP_ALL_REDUCE,
    "hsdp_ar": Tag.HSDP_ALL_REDUCE,
}

# Bits of Node.flags.
VIEW = 1
COMPUTE = 2
POINTWISE = 4
ORDERED = 8
SYMBOLIC = 16  # an output has a size that changes from step to step; its shape holds a hint


@dataclass(slots=True)
class Tensor:
    dtype: int
    shape: tuple[int, ...]
    # Strides in elements where they are known; memory_bytes (proto/GRAPH.md §3) and fusion look at them.
    stride: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * ITEM_SIZE[self.dtype]


@dataclass(slots=True)
class Group:
    """A process group by its role. `name` and `ranks` are what this rank calls it; they are not part of the graph."""

    mesh_dim: str
    lane: int
    size: int
    name: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(slots=True)
class Collective:
    kind: int
    group: int  # index into the graph's groups
    reduce_op: int = ReduceOp.NONE
    tag: int = Tag.NONE
    parameter: str = ""


@dataclass(slots=True)
class Slot:
    node: int | None  # None: empty
    kind: int = SlotKind.UNSPECIFIED
    parameter: str = ""


@dataclass(slots=True)
class Node:
    kind: int
    op: str
    inputs: list[int] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    alias_of: list[int] = field(default_factory=list)
    mutates: list[int] = field(default_factory=list)
    flags: int = 0
    flops: int = 0
    memory_bytes: int = 0
    direction: int = Direction.UNSPECIFIED
    module: str = ""
    role: int = Role.UNSPECIFIED  # placeholders
    parameter: str = ""  # placeholders
    index: int = 0  # getitems
    collective: Collective | None = None
    slots: list[Slot] = field(default_factory=list)  # the output
    name: str = ""  # for people
    opaque: bool = False  # a placeholder without a tensor (a mesh object, None): normalisation drops it


@dataclass(slots=True)
class MeshDim:
    name: str
    size: int
    ranks_per_node: int = 0  # of one group along this dimension; 0: all on one node


@dataclass(frozen=True, slots=True)
class Launch:
    """What a profiler shows as one kernel, or as one call of another's."""

    nodes: tuple[int, ...]  # that bear its cost
    words: tuple[str, ...]  # operators that its name is made of, sorted; of a call the operator
    is_call: bool


@dataclass(slots=True)
class RawGraph:
    """What one rank captured. Groups are roles already (proto/GRAPH.md §2 step 2), in order of first use."""

    name: str
    kind: str  # "fw", "bw" or "joint"
    nodes: list[Node]
    groups: list[Group]
    mesh: list[MeshDim] = field(default_factory=list)
    world_size: int = 1
    gpus_per_node: int = 0  # ranks of the world on one node; 0: all
    device_type: str = ""
    costs: str = ""  # whose kernels the nodes' memory_bytes are of: "inductor", or each node's own
    launches: tuple[Launch, ...] = ()  # of those kernels, as they run
    weak_words: tuple[str, ...] = ()  # operators that may stand in a kernel's name, or not: views, and what waits or is called


@dataclass(slots=True)
class Graph:
    """A normalised graph: equal on every rank of the mesh, byte for byte in its canonical encoding."""

    name: str
    nodes: list[Node]
    groups: list[Group]
    costs: str = ""  # as in RawGraph, and so what follows
    launches: tuple[Launch, ...] = ()
    weak_words: tuple[str, ...] = ()
