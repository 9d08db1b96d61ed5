"""One rank of a job that trains through Inductor, once for each case; prints what came of each, as JSON."""

import functools
import hashlib
import json
import os
import re
import sys

import torch
import torch.distributed as dist
from sharded_model import sharded_model
from torch._dynamo.utils import counters
from torch._inductor.compile_fx import compile_fx_inner
from torch.distributed.device_mesh import init_device_mesh

import bucketd
from bucketd.graph import NodeKind
from bucketd.plan import StepKind

RANK = int(os.environ.get("RANK", "0"))
ADDRESS = os.environ.get("PLANNER", "")
STEPS = 3


def expected(planned) -> str:
    """The plan's launches and waits, `L0 L1 w0 w1`, each wait with the place of its launch."""
    nodes, plan = planned.normalized.graph.nodes, planned.plan
    words, launched = [], {}
    for step in plan.order:
        if step.kind == StepKind.START or (step.kind == StepKind.NODE and nodes[step.id].kind == NodeKind.COLLECTIVE):
            launched[(step.kind == StepKind.START, step.id)] = len(launched)
            words.append(f"L{len(launched) - 1}")
        elif step.kind == StepKind.WAIT:
            # A bucket that is not packed has a wait for each member.
            count = 1 if plan.buckets[step.id].packed else len(plan.buckets[step.id].members)
            words += [f"w{launched[True, step.id]}"] * count
        elif nodes[step.id].kind == NodeKind.WAIT:
            words.append(f"w{launched[False, nodes[step.id].inputs[0]]}")
    return " ".join(words)


def read(code: str) -> str:
    """The same of generated code, line by line."""
    words, launched = [], {}
    for line in code[code.rindex("def call("):].splitlines():
        result, _, call = line.strip().rpartition(" = ")
        if call.startswith("torch.ops._c10d_functional.wait_tensor."):
            words.append(f"w{launched[re.search(r'buf[0-9]+', call)[0]]}")
        elif call.startswith("torch.ops._c10d_functional."):
            place = sum(word[0] == "L" for word in words)
            words.append(f"L{place}")
            launched.update(dict.fromkeys([result] if result else re.findall(r"buf\d+", call), place))
        elif (part := re.match(r"(buf\d+)\[\d+\]$", call)) and part[1] in launched:
            launched[result] = launched[part[1]]
    return " ".join(words)


def sha(tensors) -> str:
    made = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        made.update(local.detach().contiguous().view(torch.uint8).numpy().tobytes() if local.numel() else b"-")
    return made.hexdigest()


class Run:
    """What the graphs of one training were planned and compiled to."""

    def __init__(self):
        self.planned, self.graphs, self.codes, self.units = [], [], [], []
        counters.clear()

    def on_plan(self, planned):
        assert planned.normalized.graph.costs == "inductor"
        targets = [str(node.target) for node in planned.module.graph.nodes]
        self.graphs.append(" ".join("w" if "wait" in t else "L" for t in targets if "_c10d_functional" in t))
        self.planned.append(planned)

    def backend(self, **options):
        made = bucketd.backend(compiler="inductor", on_plan=self.on_plan,
                               **{**dict(address=ADDRESS, deadline=120, numerics="exact"), **options})

        def inner(gm, inputs, **more):
            code = compile_fx_inner(gm, inputs, **more)
            self.codes.append(getattr(code, "source_code", ""))
            return code

        return functools.partial(made, inner_compile=inner)

    def told(self) -> dict:
        cache = {name.removeprefix("fxgraph_cache_"): n for name, n in counters["inductor"].items() if "fxgraph_cache" in name}
        return dict(scopes=[p.scope for p in self.planned], plans=[p.plan.sha256 for p in self.planned],
                    buckets=[len(p.plan.buckets) for p in self.planned], expected=[expected(p) for p in self.planned],
                    planned=self.graphs, code=[read(code) for code in self.codes if "_c10d_functional" in code], cache=cache)


class Cases:
    def __init__(self):
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
        self.width, self.hidden = int(os.environ.get("WIDTH", "8")), int(os.environ.get("HIDDEN", "16"))

    def train(self, backend, compiled=None):
        torch._dynamo.reset()
        model = sharded_model(self.mesh, self.width, self.hidden)
        step = torch.compile(model, backend=backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
        generator = torch.Generator().manual_seed(RANK)
        losses = []
        for _ in range(STEPS):
            loss = step(torch.randint(0, 13, (2, 5), generator=generator))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.view(1))
        return dict(weights=sha(model.parameters()), losses=sha(losses))

    def unplanned(self):
        # PyTorch 2.13's AOTAutograd cache takes one rank's code for another's where shards are uneven and the folder is one.
        with torch._functorch.config.patch(enable_autograd_cache=False):
            return self.train("inductor")

    def planned(self, mode):
        run = Run()
        found = self.train(run.backend(mode=mode))
        return {**found, **run.told()}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases = Cases()
    for asked in sys.argv[1:]:
        name, *arguments = asked.split(":")
        found = getattr(cases, name)(*arguments)
        print(json.dumps({"case": asked, "rank": RANK, **found}), flush=True)
        dist.barrier()
    dist.destroy_process_group()


main()
