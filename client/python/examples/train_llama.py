#!/usr/bin/env python3
"""Trains a small Llama three times side by side, from the same weights and on the same data: eager FSDP2, compiled without
a plan, and compiled with a plan of bucketd. Says how the three compare, in bits and in time, and whether the plan said so.

    torchrun --nproc-per-node 4 client/python/examples/train_llama.py --out-dir build/quickstart

No dimension of the model divides by 4, and gradients are reduced in bf16: there a sum's bits show in which order ranks were
added, and so in which order payloads lie in a bucket. By blocks, the plan has the bits of eager FSDP2; --mode auto is faster and
has neither's, and says so.

Without --address or --ready-file the ranks start a planner of their own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import time
import urllib.request
import warnings

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler would announce its start and end on every rank
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")

import llama  # noqa: E402
import simple_fsdp  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

import bucketd  # noqa: E402
from bucketd.plan_file import save_planned  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--address", help="of the planner: HOST:PORT or unix:PATH")
    where.add_argument("--ready-file", type=pathlib.Path, help="that bucketd wrote: names its address and its side port")
    parser.add_argument("--mode", default="transformer_block")
    parser.add_argument("--numerics", default="eager_order", choices=("eager_order", "exact", "free"))
    parser.add_argument("--cost-profile", default="cpu_loopback", help="of the planner; \"\": its own default")
    parser.add_argument("--reduce-dtype", default="bf16", choices=sorted(DTYPES))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20, help="of each run; the first compiles, the last is profiled")
    parser.add_argument("--out-dir", type=pathlib.Path, help="gets the graphs and plans of rank 0")
    parser.add_argument("--json-out", type=pathlib.Path, help="default: OUT_DIR/result.json")
    arguments = parser.parse_args()
    if arguments.steps < 3:
        parser.error("--steps: expected 3 or more")
    if arguments.json_out is None and arguments.out_dir is not None:
        arguments.json_out = arguments.out_dir / "result.json"
    return arguments


def say(text: str = "") -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def count_collectives(nodes) -> int:
    """Launches in a graph; a grouped bucket is one."""
    names = (str(node.target) for node in nodes if node.op == "call_function")
    return sum(name.startswith("_c10d_functional.") and "wait_tensor" not in name for name in names)


def scrape(http: str) -> dict[str, float]:
    """Every series about plans, with its value."""
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=5) as response:
        lines = response.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {series: float(value) for series, value in pairs if series.startswith("bucketd_plan")}


class Job:
    def __init__(self, arguments):
        self.arguments = arguments
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
        # Odd shares of odd sizes. Each block has parameters of its own, for which "children first" is another order.
        self.config = llama.LlamaConfig(vocab=251, dim=57, hidden=155, layers=arguments.layers, branch_scale=True)
        self.data = training.Data(self.config.vocab)
        self.planned: list = []
        self.address, self.http = arguments.address, None
        if arguments.ready_file is not None:
            ready = json.loads(arguments.ready_file.read_text())
            self.address, self.http = ready["address"], ready.get("http")

    def trainings(self) -> list[training.Training]:
        param_dtype, reduce_dtype = torch.bfloat16, DTYPES[self.arguments.reduce_dtype]

        def make(name, shard, backend=None):
            model = shard(llama.build(self.config), self.mesh, param_dtype, reduce_dtype)
            call = model if backend is None else torch.compile(model, backend=backend(model))
            return training.Training(name, model, call, self.data)

        return [
            make("eager FSDP2", training.shard_eager),
            make("unplanned", simple_fsdp.shard, lambda _: training.UNPLANNED),
            make("planned", simple_fsdp.shard, self.backend),
        ]

    def backend(self, model):
        return bucketd.backend(
            mode=self.arguments.mode, address=self.address, numerics=self.arguments.numerics, model=model,
            cost_profile=self.arguments.cost_profile or None, on_plan=self.planned.append)

    def run(self) -> list[training.Result]:
        """The three runs step by step in turn, so that whatever else the machine does meets all of them."""
        runs = self.trainings()
        say(f"{sum(p.numel() for p in runs[0].parameters):,} parameters in {len(runs[0].parameters)} tensors, "
            f"{self.arguments.layers} blocks, {dist.get_world_size()} ranks, parameters in bf16, "
            f"reduction in {self.arguments.reduce_dtype}")
        for run in runs:
            milliseconds = run.step()
            say(f"  {run.name:12} first step {milliseconds / 1000:5.1f} s   loss {run.losses[-1]:.4f}")
        for step in range(1, self.arguments.steps - 1):
            times = [f"{run.name} {run.step():.0f} ms" for run in runs]
            if step % 4 == 0 or step == 1:
                say(f"  step {step + 1:3}: " + ", ".join(times))
        for run in runs:
            run.profiled_step()
        return [run.result() for run in runs]


def said_equal(planned) -> set[str]:
    """The runs whose bits every planned graph says it has."""
    whose = {"eager": {"eager FSDP2"}, "unplanned": {"unplanned"}, "both": {"eager FSDP2", "unplanned"}}
    return set.intersection(*(whose.get(each.plan.bits, set()) for each in planned)) if planned else set()


def ratio(runs, name: str, base: str) -> float:
    """Median over the steps of `name`'s time by `base`'s in the same round."""
    return statistics.median(a / b for a, b in zip(runs[name].step_ms, runs[base].step_ms))


def report_plans(job: Job, sources) -> list[dict]:
    plans = []
    for planned in job.planned:
        before, after = count_collectives(planned.captured.nodes), count_collectives(planned.module.graph.nodes)
        say(f"\nPlan of {planned.scope}: {planned.plan.summary()}; {before} collectives in the graph, {after} by the plan")
        say(planned.plan.table())
        say(f"  {planned.plan.bits_text}")
        for diagnostic in planned.plan.diagnostics:
            say(f"  {diagnostic.code}: {diagnostic.text}")
        plans.append({"scope": planned.scope, "plan": planned.plan.sha256, "graph": planned.digest.hex(),
                      "buckets": len(planned.plan.buckets), "collectives_before": before, "collectives_after": after,
                      "answers": [answers[planned.scope] for answers in sources]})
        say("  answers to ranks 0, 1, ...: " + ", ".join(plans[-1]["answers"]))
    answers = [answer for plan in plans for answer in plan["answers"]]
    say(f"\n{len(plans)} graphs, {len(answers)} questions: {answers.count('computed')} computed (misses), "
        f"{answers.count('joined')} joined a computation, {answers.count('hit')} from the cache (hits)")
    return plans


def report_runs(results: list[training.Result], said: set[str]) -> dict:
    runs = {result.name: result for result in results}
    say(f"\n{'':14}{'launched a step':>18}{'median ms':>12}{'by unplanned':>14}   weights (SHA-256, all ranks)")
    for name, run in runs.items():
        say(f"{name:14}{sum(run.collectives.values()):18}{statistics.median(run.step_ms):12.1f}"
            f"{ratio(runs, name, 'unplanned'):14.3f}   {run.weights[:32]}")
    facts = {}
    for other in ("unplanned", "eager FSDP2"):
        same = runs["planned"].weights == runs[other].weights and runs["planned"].gradients == runs[other].gradients
        facts[f"planned equals {other}"] = same
        facts[f"as the plan said of {other}"] = same or other not in said
        say(f"planned and {other}: weights and every step's gradients are {'equal, bit for bit' if same else 'different'}; "
            f"the plan says {'equal' if other in said else 'that they may differ'}")
    return facts


def finish(job: Job, results, seconds: float) -> bool:
    sources = [None] * dist.get_world_size()
    dist.all_gather_object(sources, {planned.scope: planned.source for planned in job.planned})
    plans = report_plans(job, sources)
    if not plans:
        say("No graph was planned.")
    service = {}
    if job.http and dist.get_rank() == 0:
        service = scrape(job.http)
        say(f"http://{job.http}/metrics: " + ", ".join(
            f"{series} {value:g}" for series, value in service.items()
            if value and series.startswith("bucketd_plan_requests_total")))
    facts = report_runs(results, said_equal(job.planned))
    if dist.get_rank() != 0:
        return True
    if job.arguments.out_dir is not None:
        job.arguments.out_dir.mkdir(parents=True, exist_ok=True)
        for planned in job.planned:
            names = save_planned(planned, job.arguments.out_dir / planned.scope.rsplit("/", 1)[-1])
            say(f"wrote {' and '.join(names)}")
    if job.arguments.json_out is not None:
        record = {"arguments": {k: str(v) for k, v in vars(job.arguments).items()}, "seconds": seconds, "plans": plans,
                  "runs": [dataclasses.asdict(result) for result in results], "service": service, **facts}
        job.arguments.json_out.write_text(json.dumps(record, indent=1) + "\n")
    fewer = all(plan["collectives_after"] < plan["collectives_before"] for plan in plans)
    return bool(plans) and fewer and all(held for fact, held in facts.items() if fact.startswith("as the plan said"))


def main() -> int:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    begin = time.perf_counter()
    job = Job(arguments)
    results = job.run()
    good = finish(job, results, time.perf_counter() - begin)
    say(f"\n{time.perf_counter() - begin:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    training.leave(main())
