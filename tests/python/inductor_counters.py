"""What Inductor itself says of a graph, its kernels and the bytes that they move, beside what bucketd.fusion predicts.

    python tests/python/inductor_counters.py [MODEL ...]      a table of the models in fusion_models.py; needs no compiler

Inductor lowers and schedules, and writes its code where `code` is asked for; nothing compiles the code, and steps run node by node.
Collectives and waits are left out on both sides: what they cost is a matter of links.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from bucketd import capture, fusion, normalize
from bucketd.step_context import CaptureContext


@dataclasses.dataclass
class Compared:
    """One rank's graph, which has none of the pads that others need. Kernels are what is launched as one: a fused node of Inductor's schedule, whose bytes its count_bytes() adds up.
    On CPUs `generated` (metrics.generated_kernel_count) is more: it counts the parts of a nest, and code that was tried."""

    kind: str  # "fw" or "bw"
    nodes: int
    kernels: int
    calls: int  # of kernels that others wrote: matrix products, attention
    bytes: int  # of kernels and calls
    generated: int  # 0: no code was written
    predicted_kernels: int
    predicted_calls: int
    predicted_bytes: int
    alone_kernels: int  # node by node: what has bytes or FLOPs
    alone_bytes: int
    normalized: normalize.Normalized  # with the costs that all ranks plan with
    units: list[fusion.Unit]  # of that
    captured: capture.Captured

    @property
    def kernel_ratio(self) -> float:
        return self.predicted_kernels / max(self.kernels, 1)

    @property
    def byte_ratio(self) -> float:
        return self.predicted_bytes / max(self.bytes, 1)

    def row(self, name: str) -> str:
        return (
            f"{name:22} {self.kind} {self.nodes:5} {self.alone_kernels:7} {self.predicted_kernels:5}/{self.kernels:<5} {self.generated:5} "
            f"{self.kernel_ratio:6.3f} {self.predicted_calls:5}/{self.calls:<5} {self.alone_bytes / 1e3:9.1f} "
            f"{self.predicted_bytes / 1e3:9.1f}/{self.bytes / 1e3:<9.1f} {self.byte_ratio:6.3f}"
        )


HEADER = (
    f"{'model':22} {'':2} {'nodes':>5} {'unfused':>7} {'kernels':>11} {'code':>5} {'ratio':>6} {'calls':>11} {'kB unfused':>10} "
    f"{'kB':>18} {'ratio':>7}"
)


@contextlib.contextmanager
def fake_mesh(size: int = 4) -> Iterator[object]:
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield init_device_mesh("cpu", (size,), mesh_dim_names=("fsdp",))
    finally:
        dist.destroy_process_group()
        torch._dynamo.reset()


def compare(step: Callable[[], torch.Tensor], code: bool = False) -> list[Compared]:
    """Of `step`, a function from nothing to a loss: its forward and its backward. Both run."""
    from torch._inductor import compile_fx, config

    torch._dynamo.reset()
    found: list[Compared] = []
    contexts: list[CaptureContext] = []

    def inner(gm, example_inputs, **options):
        fusion.note_layouts(gm, example_inputs)
        captured = capture.capture_graph(gm, contexts[-1], "bw" if options.get("is_backward") else "fw")
        runs = _copy(gm)
        found.append(_compared(captured, *_lowered(compile_fx, gm, example_inputs, options, code)))
        return runs

    def backend(gm, example_inputs):
        contexts.append(CaptureContext.from_dynamo(gm, example_inputs))
        return compile_fx.compile_fx(gm, example_inputs, inner_compile=inner)

    with config.patch(fx_graph_cache=False, compile_threads=1), torch._functorch.config.patch(enable_autograd_cache=False):
        torch.compile(step, backend=backend, dynamic=False)().backward()
    return found


def _copy(gm: torch.fx.GraphModule):
    """What runs the graph as it is now."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    module = torch.fx.GraphModule(gm, graph)

    def run(inputs):
        return module(*inputs)

    run._boxed_call = True
    return run


class _Written(BaseException):
    """Inductor has come as far as is wanted. No Exception: those it reports as errors."""


def _lowered(compile_fx, gm, example_inputs, options, code: bool):
    """(Inductor's lowered and scheduled graph, kernels in its code)."""
    from torch._inductor import graph, metrics, scheduler

    made = []

    def compile_to_module(self):
        made.append(self)
        self.codegen()
        raise _Written

    def stop(self):
        raise _Written

    metrics.reset()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(graph.GraphLowering, "compile_to_module", compile_to_module))
        if not code:
            stack.enter_context(mock.patch.object(scheduler.Scheduler, "codegen", stop))
        stack.enter_context(contextlib.suppress(_Written))
        compile_fx.compile_fx_inner(gm, example_inputs, **options)
    _report_strides(made[0])
    return made[0], metrics.generated_kernel_count if code else 0


def _report_strides(graph) -> None:
    """Tells AOTAutograd how the forward's results are laid out, as it would be told if the code had been compiled."""
    context = torch._guards.TracingContext.try_get()
    if context is not None and context.output_strides is not None and not context.output_strides:
        sizes = (out.maybe_get_stride() for out in graph.graph_outputs)
        context.output_strides.extend(None if each is None else tuple(int(step) for step in each) for each in sizes)


def _compared(captured: capture.Captured, graph, generated: int) -> Compared:
    from torch._inductor import ir
    from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode
    from torch._inductor.virtualized import V

    kernels, calls, moved = 0, 0, 0
    with V.set_graph_handler(graph):
        for unit in graph.scheduler.nodes:
            if isinstance(unit, NopKernelSchedulerNode) or isinstance(unit.node, (ir._CollectiveKernel, ir._WaitKernel)):
                continue
            moved += unit.get_read_write_buffers_sizes()
            if isinstance(unit, ExternKernelSchedulerNode):
                calls += not isinstance(unit.node, ir.MultiOutput)
            else:
                kernels += 1
    normalized = normalize.normalize(captured.raw)
    shared = fusion.use_inductor_costs(normalized, captured)
    units = fusion.predict(captured.raw.nodes, fusion.arguments(captured))
    alone = [node for node in captured.raw.nodes if node.memory_bytes or node.flops]
    return Compared(
        captured.raw.kind,
        len(captured.raw.nodes),
        kernels,
        calls,
        moved,
        generated,
        sum(not unit.is_call for unit in units),
        sum(unit.is_call for unit in units),
        sum(unit.bytes for unit in units),
        len(alone),
        sum(node.memory_bytes for node in alone),
        normalized,
        shared,
        captured,
    )


def main(names: list[str]) -> None:
    import fusion_models

    print(HEADER)
    table = {**fusion_models.OURS, **fusion_models.OTHERS, **fusion_models.KINDS, **fusion_models.LATER}
    with fake_mesh() as mesh:
        for name in names or table:
            for compared in compare(table[name](mesh), code=True):
                print(compared.row(name), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
