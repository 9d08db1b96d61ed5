#!/usr/bin/env python3
"""How long planning takes: bucketd's modes against PyTorch's own passes, on one graph, in one run, on one core.

    tests/bench/overlap_vs_torch.sh [--layers N] [--repeat N] [--json] [--graph-out FILE]

The graph is the backward of a Llama-3-8B-like step, sharded parameter by parameter over 8 ranks, with gathers of its own,
traced on fake tensors and a fake process group. PyTorch's passes get it as it is in memory, with each op's run time as a
table; bucketctl gets the same graph as a captured-graph file, whose costs are those run times.

What is timed, on one core. Of PyTorch's passes: CPU time of the call, the median of --repeat. Of bucketctl: from the parsed
graph to the verified plan, as it says itself, and CPU time of the whole process with reading the file; medians too. Merges
that change the order of sums are allowed on both sides (numerics: free), since PyTorch's passes make them. A mode that
bucketctl does not have, and a pass that refuses the graph, is a line below the table.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "client" / "python"), str(ROOT / "client" / "python" / "examples")]
os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import generate_wire  # noqa: E402

generate_wire.main()

import llama  # noqa: E402
import simple_fsdp  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import fx  # noqa: E402

from bucketd import files  # noqa: E402
from bucketd.capture import Captured, capture_graph  # noqa: E402
from bucketd.graph import CollectiveKind, NodeKind  # noqa: E402
from bucketd.joint import trace_joint  # noqa: E402
from bucketd.reshard import copy_module  # noqa: E402

RANKS = 8
BINARY = pathlib.Path(os.environ.get("BUCKETD_BIN", ROOT / "build" / "bin")) / "bucketctl"
GREEDY_CAP_MB = 2000.0  # torch's own default for the bare function


# -- the graph


def trace_backward(layers: int, positions: int):
    """(graph, what was captured of it, the capture's context)."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("fsdp",))
    config = llama.LlamaConfig(vocab=128256, dim=4096, layers=layers, heads=32, kv_heads=8, head_dim=128, hidden=14336,
                               rope_base=500000.0)
    with FakeTensorMode():
        model = simple_fsdp.shard(llama.Llama(config), mesh, torch.bfloat16, torch.float32)
        tokens = torch.zeros((1, positions), dtype=torch.int64)
        joint = trace_joint(model, (tokens, tokens.clone()), reshard=True)
    _, backward = joint.split()
    return backward, capture_graph(backward, joint.context, "bw", f"llama_{layers}_layers.bw"), joint.context


class Costs:
    """The file's run times, in milliseconds, in the form that PyTorch's passes ask for them."""

    def __init__(self, captured: Captured):
        raw = captured.raw
        self.collective = {}
        self.compute = {}
        for node, own in zip(captured.nodes, raw.nodes):
            if own.kind == NodeKind.COLLECTIVE:
                group = raw.groups[own.collective.group]
                alpha, busbw = files.collective_cost(own.collective.kind, group, raw.gpus_per_node or raw.world_size)
                whole = own.outputs[0] if own.collective.kind == CollectiveKind.ALL_GATHER else raw.nodes[own.inputs[0]].outputs[0]
                self.collective[str(node.target)] = (alpha, busbw, group.size)
                self.compute[node.name] = self._microseconds(str(node.target), whole.bytes) / 1000
            else:
                self.compute[node.name] = files.kernel_us(own) / 1000

    def _microseconds(self, target: str, size: int) -> float:
        alpha, busbw, ranks = self.collective[target]
        return alpha + (ranks - 1) / ranks * size / busbw * 1e6

    def __call__(self, node: fx.Node, size: int | None = None) -> float:
        """`size` is that of a collective's larger tensor; nodes that a pass made itself, merged collectives, have none here."""
        target = str(node.target)
        if target in self.collective and (size is not None or node.name not in self.compute):
            return self._microseconds(target, _bytes(node) if size is None else size) / 1000
        return self.compute.get(node.name, 0.0)


def _bytes(node: fx.Node) -> int:
    values = [n.meta["val"] for n in (node, *node.all_input_nodes) if isinstance(n.meta.get("val"), torch.Tensor)]
    return max(value.numel() * value.element_size() for value in values)


def collectives(gm: fx.GraphModule) -> dict[str, int]:
    """Launches by kind."""
    found = {"ag": 0, "rs": 0, "ar": 0}
    for node in gm.graph.nodes:
        name = str(node.target)
        for kind, part in (("ag", "all_gather"), ("rs", "reduce_scatter"), ("ar", "all_reduce")):
            found[kind] += name.startswith("_c10d_functional.") and part in name
    return {kind: count for kind, count in found.items() if count}


# -- PyTorch's passes


def prepare_passes() -> None:
    """Imports them, so that no call is timed with that, and gives PyTorch's scheduler the bandwidth of the GPU's memory, for
    which it asks triton. Here is neither; the figure is an H100's, and weighs only nodes without a run time in the table."""
    import torch._inductor.fx_passes.fsdp
    import torch._inductor.fx_passes.overlap_manual_scheduling
    import torch._inductor.fx_passes.overlap_scheduling
    import torch._inductor.utils
    import torch.utils._runtime_estimation

    for module in (torch._inductor.utils, torch.utils._runtime_estimation):
        module.get_gpu_dram_gbps = lambda: 3350


class TorchPasses:
    def __init__(self, gm: fx.GraphModule, captured: Captured, layers: int):
        prepare_passes()
        self.gm, self.costs, self.layers = gm, Costs(captured), layers
        self.modules = {node.name: own.module for node, own in zip(captured.nodes, captured.raw.nodes)}

    def overlap(self, gm):
        from torch._inductor.fx_passes.overlap_scheduling import schedule_overlap_bucketing

        return schedule_overlap_bucketing(
            gm, collective_bucketing=True, custom_runtime_estimation=self.costs, collective_estimator="analytical",
            compute_estimator="analytical")

    def overlap_without_pre_bucketing(self, gm):
        from torch._inductor.fx_passes.overlap_scheduling import schedule_overlap_bucketing

        return schedule_overlap_bucketing(
            gm, collective_bucketing=True, custom_runtime_estimation=self.costs, collective_estimator="analytical",
            compute_estimator="analytical", pre_bucketing_fsdp_collectives=False)

    def greedy(self, gm):
        from torch._inductor.fx_passes.fsdp import bucket_fsdp_all_gather, bucket_fsdp_reduce_scatter

        bucket_fsdp_all_gather(gm, lambda _: GREEDY_CAP_MB)
        bucket_fsdp_reduce_scatter(gm, lambda _: GREEDY_CAP_MB)
        return gm

    def transformer_block(self, gm):
        from torch._inductor.fx_passes.overlap_manual_scheduling import manual_overlap_bucketing

        def stack(node):
            path = self.modules.get(node.name, "")
            return [("", torch.nn.Module)] + ([(path, torch.nn.Module)] if path else [])

        plan = ["tok_embeddings", *(f"layers.{i}" for i in range(self.layers)), ["norm", "output"]]
        return manual_overlap_bucketing(gm, plan, module_stack_fn=stack)

    def run(self, name: str, repeat: int) -> dict:
        times, launched = [], {}
        for _ in range(repeat):
            gm = copy_module(self.gm)
            gc.collect()
            begin = time.process_time()
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    gm = getattr(self, name)(gm)
            except Exception as error:  # a pass that refuses the graph is a row of the table, not the end of it
                return {"error": f"{type(error).__name__}: {error}"}
            times.append(time.process_time() - begin)
            launched = collectives(gm)
        return {"seconds": statistics.median(times), "runs": times, "collectives": launched}


# -- bucketd's modes


def plan_by_bucketctl(graph: pathlib.Path, mode: str, repeat: int, *flags: str) -> dict:
    planning, process, answer = [], [], {}
    for _ in range(repeat):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([BINARY, "plan", graph, "--mode", mode, "--numerics", "free", "--json", *flags], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            return {"error": done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"exit {done.returncode}"}
        answer = json.loads(done.stdout)
        planning.append(answer["planning_ms"] / 1000)
        process.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {"seconds": statistics.median(planning), "runs": planning, "process_seconds": statistics.median(process),
            "buckets": len(answer["buckets"]), "collectives": answer["planned"]["collectives"],
            "predicted_us": {name: answer[name]["total_us"] for name in ("program_order", "planned")}}


# (row, PyTorch's pass, bucketctl's mode and flags)
ROWS = (
    ("overlap", "overlap", ("overlap",)),
    ("overlap, no pre-bucketing", "overlap_without_pre_bucketing", ("overlap", "--pre-bucketing", "off")),
    ("greedy, 2000 MB", "greedy", ("greedy", "--bucket-cap-mb", "2000")),
    ("transformer block", "transformer_block", ("transformer_block",)),
    ("auto against overlap", "overlap", ("auto",)),
)


def measure(arguments, gm: fx.GraphModule, captured: Captured, graph: pathlib.Path) -> list[dict]:
    passes = TorchPasses(gm, captured, arguments.layers)
    rows = []
    for name, torch_pass, (mode, *flags) in ROWS:
        if arguments.rows and not any(wanted in name for wanted in arguments.rows):
            continue
        ours = plan_by_bucketctl(graph, mode, 5 * arguments.repeat, *flags)
        theirs = passes.run(torch_pass, arguments.repeat)
        row = {"row": name, "bucketd": ours, "torch": theirs}
        if "seconds" in ours and "seconds" in theirs:
            row["times_faster"] = theirs["seconds"] / ours["seconds"]
            row["times_faster_whole_process"] = theirs["seconds"] / ours["process_seconds"]
        rows.append(row)
        print(f"{name}: done", file=sys.stderr)
    return rows


def table(rows: list[dict]) -> str:
    head = ("", "PyTorch s", "launches", "bucketd ms", "process ms", "launches", "faster", "with process")
    lines = [head]

    def launches(run):
        return "+".join(f"{count} {kind}" for kind, count in run["collectives"].items()) if "collectives" in run else ""

    for row in rows:
        ours, theirs = row["bucketd"], row["torch"]
        lines.append((
            row["row"],
            f"{theirs['seconds']:.2f}" if "seconds" in theirs else "-", launches(theirs),
            f"{1000 * ours['seconds']:.1f}" if "seconds" in ours else "-",
            f"{1000 * ours['process_seconds']:.0f}" if "seconds" in ours else "-", launches(ours),
            f"{row['times_faster']:.0f} x" if "times_faster" in row else "-",
            f"{row['times_faster_whole_process']:.0f} x" if "times_faster" in row else "-",
        ))
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = ["  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths)))
            for line in lines]
    for row in rows:
        for who in ("bucketd", "torch"):
            if "error" in row[who]:
                text.append(f"{row['row']}: {who} has no figure: {row[who]['error']}")
    return "\n".join(line.rstrip() for line in text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--positions", type=int, default=8192, help="tokens of a sequence")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each of PyTorch's passes")
    parser.add_argument("--rows", nargs="*", help="only those rows whose name holds one of these")
    parser.add_argument("--graph-out", type=pathlib.Path, help="keeps the captured graph")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, children too
    begin = time.process_time()
    gm, captured, _ = trace_backward(arguments.layers, arguments.positions)
    traced = time.process_time() - begin
    with tempfile.TemporaryDirectory() as folder:
        graph = arguments.graph_out or pathlib.Path(folder, "backward.json.gz")
        files.save_graph(captured.raw, graph)
        rows = measure(arguments, gm, captured, graph)
    record = {"nodes": len(captured.nodes), "collectives": collectives(gm), "tracing_seconds": traced, "torch": torch.__version__,
              "machine": platform.processor() or platform.machine(), "rows": rows}
    if arguments.json:
        print(json.dumps(record, indent=1))
    else:
        print(f"{record['nodes']} nodes, {record['collectives']}, traced in {traced:.0f} s of CPU time; torch {record['torch']}, one core")
        print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
