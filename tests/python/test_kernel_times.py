"""Kernel times of profiler traces: of Inductor's own on this CPU, and of traces by hand as GPUs leave them."""

import collections
import contextlib
import dataclasses
import gzip
import itertools
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys

import fusion_models
import pytest
import torch
from fusion_models import F32, Feedforward
from inductor_counters import fake_mesh
from planners import planner
from trainers_page import blocks, commands

import bucketd
from bucketd import canonical, files, plan_file
from bucketd.graph import POINTWISE, DType, GraphError, Launch, Node, NodeKind, RawGraph, Tensor
from bucketd.kernel_times import TraceError, kernel_times
from bucketd.kernel_times.__main__ import main
from bucketd.kernel_times.match import sure_places
from bucketd.kernel_times.trace import INDUCTORS, OPERATORS, read_runs
from bucketd.normalize import normalize

STEPS = 3
LARGE = 4096  # features: what has them takes milliseconds, all else some 40 us at most, so that a busy machine does not change which takes longer
BIN = pathlib.Path(os.environ.get("BUCKETD_BIN", "build/bin")).absolute()
DATA = pathlib.Path(__file__).resolve().parents[1] / "data"

# -- a real trace

(THE_PAGES_STEP,) = blocks("Measured kernels", "python")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """(graph files of forward and backward, a trace of three steps) of a model in which some products are a hundred times as large as all else."""
    folder = tmp_path_factory.mktemp("profiled")
    with contextlib.chdir(folder), fake_mesh() as mesh, torch._inductor.config.patch({"cpp.enable_kernel_profile": True, "compile_threads": 1}):
        torch._dynamo.reset()
        model = Feedforward(torch.nn.RMSNorm, torch.nn.functional.silu, gated=True, width=24, hidden=32, layers=2)
        model.layers[1]["up"] = torch.nn.Linear(24, LARGE)
        model.layers[1]["gate"] = torch.nn.Linear(24, LARGE)
        model.layers[1]["down"] = torch.nn.Linear(LARGE, 24)
        names = dict(torch=torch, bucketd=bucketd, model=fusion_models.step(mesh, model, F32, torch.randn(512, 24)))
        exec(THE_PAGES_STEP, names)
        step = names["step"]
        step().backward()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for _ in range(STEPS):
                step().backward()
        profiler.export_chrome_trace("trace.json.gz")
    return [str(folder / f"{kind}.graph.json.gz") for kind in ("fw", "bw")], str(folder / "trace.json.gz")


def test_a_trace_of_inductors_kernels_reaches_the_graphs_nodes(profiled):
    paths, trace = profiled
    graphs = [files.load_graph(path) for path in paths]
    found = kernel_times(graphs, trace)
    assert [graph.kind for graph in graphs] == ["fw", "bw"] and found.runs == [STEPS, STEPS]
    shares = []
    for graph, times in zip(graphs, found.microseconds, strict=True):
        bearing = {node for launch in graph.launches for node in launch.nodes}
        assert times.keys() <= bearing == {n for n, node in enumerate(graph.nodes) if node.kind == NodeKind.CALL and node.memory_bytes}
        assert all(took > 0 for took in times.values())
        shares.append(len(times) / len(bearing))
    print("measured", shares, dict(found.dropped))
    assert shares[0] == 1 and shares[1] >= 0.5, found.dropped
    # The large products and what is computed with their results are what takes long, and nothing else is.
    graph, times = graphs[0], found.microseconds[0]
    large = {node for node in times for near in [node, *graph.nodes[node].inputs] for tensor in graph.nodes[near].outputs if LARGE in tensor.shape}
    assert len(large) == 4 and len(times) == 12
    assert set(sorted(times, key=times.get)[-4:]) == large, [(graph.nodes[n].op, n in large, took) for n, took in times.items()]


def test_the_command_writes_what_plans_are_made_with(profiled, tmp_path, capsys):
    paths, trace = profiled
    outs = [str(tmp_path / "fw.json.gz"), str(tmp_path / "bw.json")]
    ran = subprocess.run([sys.executable, "-m", "bucketd.kernel_times", trace, "--graph", paths[0], "--out", outs[0],
                          "--graph", paths[1], "--out", outs[1]], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert f"{outs[0]}: {STEPS} runs, " in ran.stdout and "costs measured, compute_scale " in ran.stdout
    graph = files.load_graph(paths[0])
    times = kernel_times([graph], trace).microseconds[0]
    with gzip.open(outs[0]) as file:
        records = json.load(file)["nodes"]
    scale = sum(times.values()) / sum(files.kernel_us(graph.nodes[n]) for n in times)
    for n, (node, record) in enumerate(zip(graph.nodes, records, strict=True)):
        if node.kind == NodeKind.CALL:
            assert record["est_us"] == pytest.approx(times.get(n, scale * files.kernel_us(node)), abs=1e-3)
    took = sum(record["est_us"] for record in records if "coll" not in record)
    assert _planned(paths[0])["planned"]["compute_us"] == pytest.approx(sum(map(files.kernel_us, graph.nodes)), abs=0.01)
    planned = _planned(outs[0])
    assert planned["planned"]["compute_us"] == pytest.approx(took, abs=0.01)
    assert planned["digest"] == canonical.digest(normalize(graph).graph).hex() == _planned(paths[0])["digest"]
    said = float(re.search(r"compute_scale (\S+)", ran.stdout)[1])
    profile = tmp_path / "profile.json"
    _bucketctl("costs", "import-trace", "--profile", "h100_nvlink", "--out", profile, *sorted((DATA / "traces").glob("*.json.gz")))
    profile.write_text(json.dumps({**json.loads(profile.read_text()), "compute_scale": said}))
    by_profile = _planned(paths[0], "--costs", "profile", "--profile", profile)
    assert by_profile["planned"]["compute_us"] == pytest.approx(took, rel=0.01)  # every launch of it was measured


def test_the_pages_commands_plan_with_what_was_measured(profiled):
    (graph, _), trace = profiled
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), str(BIN), os.environ["PATH"]])
    said = [subprocess.run(command, shell=True, cwd=pathlib.Path(trace).parent, env={**os.environ, "PATH": path}, capture_output=True, text=True)
            for command in commands("Measured kernels")]
    assert [ran.returncode for ran in said] == [0, 0, 0], said
    assert said[0].stdout.count("costs measured, compute_scale") == 2 and "program order" in said[1].stdout
    assert "measured nodes" in said[2].stdout and json.loads((pathlib.Path(trace).parent / "ours.json").read_text())["kernels"]


def _bucketctl(*arguments):
    ran = subprocess.run([BIN / "bucketctl", *arguments], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def _planned(path, *flags):
    return json.loads(_bucketctl("plan", path, "--mode", "none", "--json", *flags))


# -- to the plans of a job


def _step(compiler, profiled, **options):
    """Plans of a forward and a backward by kind; profiles it into the folder `profiled`, unless that is None."""
    plans = {}

    def keep(planned):
        plans[planned.captured.raw.kind] = planned.plan
        if profiled:
            plan_file.save_planned(planned, profiled / planned.captured.raw.kind)

    torch._dynamo.reset()
    with fake_mesh() as mesh, torch._inductor.config.patch({"cpp.enable_kernel_profile": True, "compile_threads": 1}):
        # Of equal layers Inductor's kernels cannot be told apart; operators, in their order, can.
        model = Feedforward(torch.nn.RMSNorm, torch.nn.functional.silu, gated=True, width=24, hidden=32, layers=1 if compiler == "inductor" else 2)
        call = fusion_models.step(mesh, model, F32, torch.randn(512, 24))
        step = torch.compile(call, backend=bucketd.backend(compiler=compiler, mode="none", on_plan=keep, **options))
        step().backward()
        if profiled:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
                for _ in range(STEPS):
                    step().backward()
            profiler.export_chrome_trace(str(profiled / "trace.json.gz"))
    return plans


def _slower(trace: str, times: float) -> None:
    """Makes it a trace of a machine that much slower: what was estimated without it, which may happen to be right here, is wrong then."""
    with gzip.open(trace, "rt") as file:
        whole = json.load(file)
    for event in whole["traceEvents"]:
        for what in ("ts", "dur"):
            if what in event:
                event[what] *= times
    with gzip.open(trace, "wt") as file:
        json.dump(whole, file)


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_measured_kernels_reach_the_plans_of_jobs_through_a_server(tmp_path, compiler):
    kinds = ("fw", "bw")
    before = _step(compiler, tmp_path)
    graphs = [files.load_graph(tmp_path / f"{kind}.graph.json.gz") for kind in kinds]
    outs = [str(tmp_path / f"{kind}.measured.json.gz") for kind in kinds]
    trace = str(tmp_path / "trace.json.gz")
    _slower(trace, 5)
    assert main([trace, *(word for kind, out in zip(kinds, outs) for word in ("--graph", str(tmp_path / f"{kind}.graph.json.gz"), "--out", out))]) == 0
    ours = tmp_path / "ours.json"
    _bucketctl("costs", "import-trace", trace, "--profile", "cpu_loopback", "--name", "ours", "--out", ours, *(w for out in outs for w in ("--kernels", out)))
    with planner() as server:
        _bucketctl("costs", "import", ours, "--server", server.address)
        after = _step(compiler, None, address=server.address, cost_profile="ours")
        others = _step(compiler, None, address=server.address, cost_profile="cpu_loopback")
    found = kernel_times(graphs, trace)
    rows = json.loads(ours.read_text())["kernels"]
    assert 0 < len(rows) <= sum(map(len, found.microseconds))
    for kind, graph, times in zip(kinds, graphs, found.microseconds, strict=True):
        assert after[kind].cost_profile == "ours@1"
        assert plan_file.to_json(others[kind]) == plan_file.to_json(before[kind])  # no rows, no other plan
        bearing = sum(1 for node in graph.nodes if files.kernel_us(node))
        assert len(times) >= (0.9 if compiler == "aot_eager" else 1.0) * bearing
    # What the step's kernels took in all, those that are nobody's among them. Kernels of one kind, as in equal layers, have one row.
    runs = read_runs(trace, collections.Counter(), OPERATORS if compiler == "aot_eager" else INDUCTORS)
    alike = collections.defaultdict(list)  # runs of one graph
    for run in runs:
        alike[tuple(name for name, _ in run)].append([time for _, time in run])
    assert [len(each) for each in alike.values()] == [STEPS, STEPS]
    took = sum(statistics.median(times) for each in alike.values() for times in zip(*each, strict=True))
    predicted = [sum(plans[kind].prediction.compute_ps / 1e6 for kind in kinds) for plans in (before, after)]
    print(compiler, len(rows), "rows, took", took, "predicted before and after", predicted)
    # All that runs was measured, and equal kernels have their mean; what views and allocations take stands with the operator behind them, or nowhere.
    off = 0.1 if compiler == "aot_eager" else 1e-6
    assert abs(predicted[1] - took) < off * took < abs(predicted[0] - took)


# -- traces by hand, as GPUs leave them

ALL = 1 << 20


def graph(*launches, weak=(), name="g"):
    """Launches as (words, is_call), one node each, or (words, is_call, bytes, bytes ...) with a node for each number."""
    nodes = [Node(NodeKind.PLACEHOLDER, "placeholder", outputs=[Tensor(DType.F32, (8, 8))])]
    made = []
    for words, is_call, *sizes in launches:
        first = len(nodes)
        for size in sizes or [ALL]:
            nodes.append(Node(NodeKind.CALL, f"aten.{words.split()[-1]}.default", [0], [Tensor(DType.F32, (8, 8))], flags=POINTWISE, memory_bytes=size))
        made.append(Launch(tuple(range(first, len(nodes))), tuple(words.split()), is_call))
    return RawGraph(name, "fw", nodes, [], costs="inductor", launches=tuple(made), weak_words=tuple(weak))


class Trace:
    """Events as torch.profiler writes them where a GPU runs the kernels."""

    def __init__(self):
        self.events, self.now, self.ids = [{"ph": "M", "name": "process_name"}], 1000.0, itertools.count(1)

    def add(self, category, name, took, **args):
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 7, "ts": self.now, "dur": took, "args": args})
        return self.events[-1]

    def run(self, *kernels, key="fabc"):
        """One run: (name of the kernel, microseconds), or (name, microseconds, operator around its launch)."""
        whole = self.add("cpu_op", f"## Call CompiledFxGraph {key} ##", 0)
        for name, took, *around in kernels:
            self.now += 1
            if around and around[0]:
                self.add("cpu_op", around[0], 2)
            self.launched(name, took)
            self.now += 3
        whole["dur"] = self.now - whole["ts"]
        self.now += 10
        return self

    def launched(self, name, took):
        number = next(self.ids)
        self.add("cuda_runtime", "cudaLaunchKernel", 0.5, correlation=number)
        self.add("kernel", name, took, correlation=number)
        self.events[-1].update(ts=5000 + self.now, tid="stream 20", pid=0)

    def save(self, path):
        path.write_text(json.dumps({"traceEvents": self.events}))
        return path


STEP = graph(("add mul", False), ("mm", True), ("_to_copy relu", False), weak=("view",))


def test_kernels_of_a_gpu_are_found_by_their_launch(tmp_path):
    trace = Trace()
    for took in (10, 30, 20):
        trace.run(("triton_poi_fused_add_mul_view_3", took), ("sm90_xmma_gemm", 100, "aten::mm"), ("triton_red_fused__to_copy_relu_0", 7))
    found = kernel_times([STEP], trace.save(tmp_path / "t.json"))
    assert found.microseconds == [{1: 20, 2: 100, 3: 7}]  # the median
    assert (found.runs, found.matched, found.dropped) == ([3], 9, collections.Counter())


def test_a_library_call_is_all_kernels_that_it_launches_and_collectives_are_none(tmp_path):
    trace = Trace().run(("triton_poi_fused_add_mul_3", 5), ("splitk", 40, "aten::mm"), ("ncclDevKernel_AllGather", 99, "c10d::allgather_into_tensor_"),
                        ("ncclDevKernel_AllGather", 99), ("triton_red_fused__to_copy_relu_0", 7))
    trace.now = next(e["ts"] for e in trace.events if e["name"] == "aten::mm") + 1
    trace.launched("reduce_splitk", 2)
    found = kernel_times([STEP], trace.save(tmp_path / "t.json"))
    assert found.microseconds == [{1: 5, 2: 42, 3: 7}] and not found.dropped


def test_kernels_outside_of_compiled_code_and_without_a_launch_are_counted(tmp_path):
    trace = Trace()
    trace.launched("triton_poi_fused_add_mul_3", 5)
    trace.now += 10
    trace.run(("triton_poi_fused_add_mul_3", 6), ("gemm", 1, "aten::mm"), ("triton_red_fused__to_copy_relu_0", 7))
    trace.add("kernel", "triton_poi_fused_add_mul_3", 8, correlation=404)
    trace.add("kernel", "triton_poi_fused_add_mul_3", 8)
    trace.now += 10
    trace.launched("triton_poi_fused_add_mul_3", 5)
    trace.add("cuda_runtime", "cudaDeviceSynchronize", 1)
    found = kernel_times([STEP], trace.save(tmp_path / "t.json"))
    assert found.microseconds == [{1: 6, 2: 1, 3: 7}]
    assert found.dropped == {"kernels outside of compiled code": 2, "kernels whose launch is not in the trace": 2}


def test_kernels_that_run_as_one_function_share_its_time_by_bytes(tmp_path):
    one = graph(("add mul", False, 300, 100))
    found = kernel_times([one], Trace().run(("triton_poi_fused_add_mul_3", 8)).save(tmp_path / "t.json"))
    assert found.microseconds == [{1: 6, 2: 2}]


def test_views_that_run_operator_by_operator_are_priced_with_the_kernel_behind_them(tmp_path):
    trace = Trace()
    whole = trace.add("cpu_op", "CompiledFunction", 0)
    for name, took in (("aten::t", 2), ("aten::view", 1), ("aten::mm", 30), ("aten::relu", 5), ("aten::detach", 4)):
        trace.add("cpu_op", name, took)
        trace.now += took + 1
    whole["dur"] = trace.now - whole["ts"]
    eager = dataclasses.replace(graph((("mm"), True), (("relu"), True)), costs="", launches=())
    found = kernel_times([eager], trace.save(tmp_path / "trace.json"))
    assert found.microseconds == [{1: 33.0, 2: 9.0}] and found.matched == 2 and not found.dropped


def test_what_was_not_measured_gets_the_cost_model_scaled_as_the_rest(tmp_path):
    step = graph(("add", False), ("sin", True), ("sum", False, 7 * ALL))
    found = kernel_times([step], Trace().run(("triton_poi_fused_add_0", 40), ("triton_red_fused_sum_0", 50)).save(tmp_path / "t.json"))
    model = [files.kernel_us(node) for node in step.nodes]
    estimates = [record["est_us"] for record in files.to_json(step, found.microseconds[0])["nodes"]]
    assert estimates == pytest.approx([0, 40, 90 / (model[1] + model[3]) * model[2], 50], abs=1e-3)
    assert [record["est_us"] for record in files.to_json(step)["nodes"]] == pytest.approx(model, abs=1e-3)


def test_what_could_be_either_of_two_launches_is_counted_and_not_matched(tmp_path):
    twice = graph(("add", False), ("mm", True), ("relu", False), ("relu", False), ("mul", False))
    trace = Trace().run(("triton_poi_fused_add_0", 1), ("gemm", 2, "aten::mm"), ("triton_poi_fused_relu_1", 3), ("triton_poi_fused_mul_2", 4))
    found = kernel_times([twice], trace.save(tmp_path / "t.json"))
    assert found.microseconds == [{1: 1, 2: 2, 5: 4}]
    assert found.dropped == {"kernels with several places in the graph": 1}


@pytest.mark.parametrize("name, why", [
    ("triton_poi_fused_add_sin_3", "kernels of operators that the graph has not"),
    ("triton_poi_fused_add_3", "kernels that the graph has no launch for there"),
    ("triton_poi_fused_a_b_c_3", "kernels whose name can be read in several ways"),
    ("triton_poi_fused_" + "add_" * 500 + "3", "kernels whose name is too long"),
])
def test_a_name_that_is_no_launch_says_why(tmp_path, name, why):
    known = graph(("add mul", False), ("mm", True), ("a b_c", False), ("a_b c", False))
    trace = Trace().run(("triton_poi_fused_add_mul_0", 1), ("gemm", 2, "aten::mm"), (name, 3))
    found = kernel_times([known], trace.save(tmp_path / "t.json"))
    assert found.microseconds == [{1: 1, 2: 2}] and found.dropped == {why: 1}


def test_a_run_goes_to_the_graph_that_most_of_it_is_of_and_to_neither_of_two_alike(tmp_path):
    other = graph(("add mul", False), ("bmm", True), ("sum", False), name="other")
    trace = Trace().run(("triton_poi_fused_add_mul_0", 1), ("gemm", 2, "aten::bmm"), key="f1")
    trace.run(("triton_poi_fused_add_mul_0", 3), ("triton_red_fused__to_copy_relu_0", 4), key="f2")
    trace.run(("triton_poi_fused_add_mul_0", 5), key="f3")
    trace.run(("sort", 1, "aten::sort"), ("topk", 1, "aten::topk"), ("triton_red_fused_sum_0", 9), key="f4")
    found = kernel_times([STEP, other], trace.save(tmp_path / "t.json"))
    assert found.microseconds == [{1: 3, 3: 4}, {1: 1, 2: 2}] and found.runs == [1, 1]
    assert found.dropped == {"kernels of a run that is of none of the graphs, or of several alike": 4}


def _everywhere(expected, shown):
    """By trying all longest common subsequences."""
    found, best = [], 0
    for size in range(min(len(expected), len(shown)), -1, -1):
        for mine in itertools.combinations(range(len(shown)), size):
            for theirs in itertools.combinations(range(len(expected)), size):
                if all(expected[i] == shown[j] for i, j in zip(theirs, mine, strict=True)):
                    found.append(dict(zip(mine, theirs, strict=True)))
                    best = size
        if found:
            break
    assert best == size
    ways = [{pairs.get(j) for pairs in found} for j in range(len(shown))]
    return [way.pop() if len(way) == 1 else None for way in ways]


def test_a_sure_place_is_the_same_in_every_best_alignment():
    seeded = random.Random(19)
    some = 0
    for _ in range(300):
        expected, shown = ([seeded.choice("abc") for _ in range(seeded.randrange(7))] for _ in range(2))
        places = sure_places(expected, shown)
        assert places == _everywhere(expected, shown), (expected, shown)
        some += any(place is not None for place in places) and None in places
    assert some > 50


# -- what is no trace


def _broken(change):
    trace = Trace().run(("triton_poi_fused_add_mul_3", 5)).events
    event = next(e for e in trace if e.get("cat") == "kernel")
    return json.dumps({"traceEvents": change(trace, event) or trace})


@pytest.mark.parametrize("text, says", [
    ("", "expected JSON, plain or gzip"),
    ("[" * 100000, "expected JSON, plain or gzip"),
    ("\x1f\x8b no gzip", "expected JSON, plain or gzip"),
    (gzip.compress(b"{}", mtime=0)[:10].decode("latin-1") + "\xff" * 20, "expected JSON, plain or gzip"),
    ("[]", 'no list "traceEvents"'),
    ('{"traceEvents": {}}', 'no list "traceEvents"'),
    ('{"traceEvents": [{}, 7]}', "traceEvents[1]: expected an object, is int"),
    (_broken(lambda all, e: e.pop("name") and None), 'traceEvents[3]: expected a text "name"'),
    (_broken(lambda all, e: e.update(args=[])), 'traceEvents[3]: expected a text "name" and an object "args"'),
    (_broken(lambda all, e: e.update(dur=-1)), "traceEvents[3] ('triton_poi_fused_add_mul_3'): \"dur\" is -1, expected microseconds"),
    (_broken(lambda all, e: e.update(ts=float("nan"))), '"ts" is nan, expected microseconds'),
    (_broken(lambda all, e: e.update(ts=10**300)), '"ts" is 1000'),
    (_broken(lambda all, e: e.update(dur="5")), '"dur" is 5, expected microseconds'),
])
def test_what_is_no_trace_is_refused_by_its_place(tmp_path, text, says):
    path = tmp_path / "t.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TraceError) as refused:
        kernel_times([STEP], path)
    assert str(refused.value).startswith(str(path)) and says in str(refused.value)


def test_a_graph_without_launches_and_one_with_broken_ones_are_refused(tmp_path, capsys):
    trace = str(Trace().run(("triton_poi_fused_add_mul_3", 5)).save(tmp_path / "t.json"))
    plain = RawGraph("plain", "fw", STEP.nodes, [], costs="inductor")
    with pytest.raises(GraphError, match="graph plain: states no launches"):
        kernel_times([plain], trace)
    with pytest.raises(GraphError, match="some graphs were planned for Inductor and others not"):
        kernel_times([STEP, RawGraph("operators", "fw", STEP.nodes, [])], trace)
    whole = files.to_json(STEP)
    for change, says in [({"nodes": [99]}, "launches[1]: expected ids of nodes, is [99]"), ({"nodes": []}, "launches[1]: expected ids"),
                         ({"nodes": ["x"]}, "launches[1]: expected ids"), ({"words": "mm"}, "launches[1].words: expected names of operators, is mm")]:
        path = tmp_path / "broken.json"
        path.write_text(json.dumps({**whole, "launches": [whole["launches"][0], {**whole["launches"][1], **change}]}))
        assert main([trace, "--graph", str(path), "--out", str(tmp_path / "no.json")]) == 1
        assert says in capsys.readouterr().err and not (tmp_path / "no.json").exists()


def test_a_graph_that_is_not_in_the_trace_is_not_written(tmp_path, capsys):
    files.save_graph(graph(("sum", False)), tmp_path / "g.json")
    trace = str(Trace().run(("triton_poi_fused_add_mul_3", 5)).save(tmp_path / "t.json"))
    assert main([trace, "--graph", str(tmp_path / "g.json"), "--out", str(tmp_path / "no.json")]) == 1
    assert "no.json: not written, no kernel of this graph is in the trace" in capsys.readouterr().out
    assert not (tmp_path / "no.json").exists()
    known = str(Trace().run(("triton_poi_fused_sum_3", 5)).save(tmp_path / "t.json"))
    assert main([known, "--graph", str(tmp_path / "g.json"), "--out", str(tmp_path / "no" / "folder.json")]) == 1
    assert "No such file or directory" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([trace, "--graph", "a", "--graph", "b", "--out", "c"])
    assert "2 times --graph, 1 times --out" in capsys.readouterr().err
