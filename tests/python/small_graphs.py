"""Graphs of a few nodes, made by hand, for tests that need no torch."""

from bucketd.graph import ORDERED, Collective, CollectiveKind, DType, Graph, Group, Node, NodeKind, ReduceOp, Slot, Tensor

WORLD = 4


class Maker:
    """Appends nodes; every method returns the new node's id."""

    def __init__(self):
        self.nodes = []

    def add(self, kind, op, *inputs, shape=(8,), dtype=DType.F32, **more):
        outputs = [] if kind == NodeKind.OUTPUT else [Tensor(dtype, tuple(shape))]
        name = f"{op.split('.')[0]}_{len(self.nodes)}"
        self.nodes.append(Node(kind, op, list(inputs), outputs, name=name, **more))
        return len(self.nodes) - 1

    def placeholder(self, shape=(8,), dtype=DType.F32):
        return self.add(NodeKind.PLACEHOLDER, "placeholder", shape=shape, dtype=dtype)

    def call(self, *inputs, op="mm.default", **more):
        return self.add(NodeKind.CALL, op, *inputs, **more)

    def random(self, *inputs):
        return self.call(*inputs, op="aten.rand_like.default", flags=ORDERED)

    def write(self, target, *inputs):
        return self.call(target, *inputs, op="aten.copy_.default", alias_of=[target], mutates=[target])

    def gather(self, source, group=0):
        shard = self.nodes[source].outputs[0]
        return self._collective(CollectiveKind.ALL_GATHER, source, (WORLD * shard.shape[0],), shard.dtype, group)

    def scatter(self, source, reduce_op=ReduceOp.SUM):
        whole = self.nodes[source].outputs[0]
        shape = (whole.shape[0] // WORLD, *whole.shape[1:])
        return self._collective(CollectiveKind.REDUCE_SCATTER, source, shape, whole.dtype, 0, reduce_op)

    def _collective(self, kind, source, shape, dtype, group, reduce_op=ReduceOp.NONE):
        return self.add(NodeKind.COLLECTIVE, kind.name.lower(), source, shape=shape, dtype=dtype,
                        collective=Collective(kind, group, reduce_op))

    def wait(self, start):
        tensor = self.nodes[start].outputs[0]
        return self.add(NodeKind.WAIT, "wait", start, shape=tensor.shape, dtype=tensor.dtype, alias_of=[start])

    def done(self, *results) -> Graph:
        self.add(NodeKind.OUTPUT, "output", *results, slots=[Slot(r) for r in results])
        return Graph("small", self.nodes, [Group("dp", 0, WORLD), Group("tp", 0, WORLD)])


def two_gathers() -> Graph:
    """0, 1: shards. 2 gather 0, 3 wait, 4 use; 5 gather 1, 6 wait, 7 use of both; 8 output."""
    make = Maker()
    a, b = make.placeholder((3,)), make.placeholder((5,))
    first = make.call(make.wait(make.gather(a)))
    second = make.call(make.wait(make.gather(b)), first)
    return make.done(second)
