"""One rank: traces a small sharded model and runs its graphs by plans made by chance, beside the untouched ones."""

import sys

import torch
import torch.distributed as dist
from any_plan import any_plan
from fx_graphs import Builder
from plannable import applied
from sharded_model import sharded_model
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.device_mesh import init_device_mesh

from bucketd import canonical, capture, normalize
from bucketd.step_context import CaptureContext

SEEDS = int(sys.argv[1])


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
        return (one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype
                and torch.equal(one.view(bits), other.view(bits)))
    return one is other or one == other


def check_metadata(module):
    for node in module.graph.nodes:
        assert node.op in ("output", "placeholder") or "val" in node.meta, f"{node.name} has no value in its meta"


class Checked:
    """Runs the graph as it is, then by plan after plan, on the same inputs; all must agree bit for bit."""

    def __init__(self, gm, context, kind):
        self.gm, self.kind, self.buckets = gm, kind, 0
        self.captured = capture.capture_graph(gm, context, kind)
        self.normalized = normalize.normalize(self.captured.raw)
        self.digest = canonical.digest(self.normalized.graph)
        self._boxed_call = True

    def __call__(self, inputs):
        expected = self.gm(*inputs)
        before = str(self.gm.graph)
        for seed in range(SEEDS):
            made = any_plan(self.normalized.graph, self.digest, seed)
            module = applied(self.gm, self.captured, self.normalized, self.digest, made)
            check_metadata(module)
            self.buckets += len(made.buckets)
            got = module(*inputs)
            wrong = [i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if not same(a, b)]
            assert not wrong, f"{self.kind}, plan {seed}: outputs {wrong} differ"
            storages = [t.untyped_storage().data_ptr() for t in got if isinstance(t, torch.Tensor)]
            plain = [t.untyped_storage().data_ptr() for t in expected if isinstance(t, torch.Tensor)]
            assert len(set(storages)) == len(set(plain)), f"{self.kind}, plan {seed}: outputs share other storages"
        assert str(self.gm.graph) == before
        inputs.clear()
        return expected


def check(width, hidden, mesh):
    model = sharded_model(mesh, width, hidden)
    checked = []

    def backend(gm, example_inputs):
        context = CaptureContext.from_dynamo(gm, example_inputs)

        def compiler(kind):
            def compile_part(part, _):
                checked.append(Checked(part, context, kind))
                return checked[-1]

            return compile_part

        return aot_autograd(fw_compiler=compiler("fw"), bw_compiler=compiler("bw"))(gm, example_inputs)

    torch.manual_seed(dist.get_rank())
    torch.compile(model, backend=backend)(torch.randint(0, 13, (2, 5))).backward()
    assert [c.kind for c in checked] == ["fw", "bw"] and all(c.buckets for c in checked)
    return [(c.kind, c.digest.hex(), c.buckets) for c in checked]


def check_reductions(mesh):
    """All-reduces and averages of shapes that no sharding makes; whole numbers, whose sums no order can change."""
    group = mesh.get_group().group_name
    world, rank = dist.get_world_size(), dist.get_rank()
    shapes = [(3,), (), (4, 2), (0,), (5,), (1, 1, 7)]
    builder = Builder()
    summed = [builder.input(f"s{i}", *shape) for i, shape in enumerate(shapes)]
    spread = [builder.input(f"a{n}", world * n, 3) for n in (1, 2, 5)]
    results = [builder.wait(builder.reduce(x, group=group)) for x in summed]
    results += [builder.wait(builder.scatter(x, "sum", world, group)) for x in spread]
    checked = Checked(builder.output(results), builder.context, "bw")
    generator = torch.Generator().manual_seed(rank)
    checked([torch.randint(-99, 99, n.meta["val"].shape, generator=generator).float() for n in summed + spread])
    assert checked.buckets
    return [("reductions", checked.digest.hex(), checked.buckets)]


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    even = check(8, 16, mesh)
    torch._dynamo.reset()
    print(even, check(6, 7, mesh), check_reductions(mesh))
    dist.destroy_process_group()


main()
