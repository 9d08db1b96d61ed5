"""One rank of a job that trains through Inductor, once for each case; prints what came of each, as JSON."""

import functools
import hashlib
import json
import os
import re
import sys

if os.environ["RANK"] in os.environ.get("COLD", ""):  # ranks with a cache of their own
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["COLD_CACHE"]

import simple_fsdp
import torch
import torch.distributed as dist
from checkpointed_model import CheckpointedModel
from expert_model import ExpertModel
from sharded_model import Model, sharded_model
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch.distributed.device_mesh import init_device_mesh
from trainers_page import blocks

import bucketd
from bucketd.graph import NodeKind
from bucketd.plan import StepKind

RANK = int(os.environ.get("RANK", "0"))
ADDRESS = os.environ.get("PLANNER", "")
PLANNER = dict(address=ADDRESS, deadline=300, numerics="exact")
STEPS = 3
_LAUNCHES = re.compile(r"_c10d_functional\.|bucketd\.(start|wait)\.")


def expected(planned) -> str:
    """The plan's launches and waits, `L0 L1 w0 w1`, each wait with the place of its launch."""
    nodes, plan = planned.normalized.graph.nodes, planned.plan
    words, launched = [], {}
    for step in plan.order:
        if step.kind == StepKind.START or (step.kind == StepKind.NODE and nodes[step.id].kind == NodeKind.COLLECTIVE):
            launched[(step.kind == StepKind.START, step.id)] = len(launched)
            words.append(f"L{len(launched) - 1}")
        elif step.kind == StepKind.WAIT:
            # A bucket that is not packed has a wait for each member, but the executor's.
            once = plan.buckets[step.id].packed or planned.runner is not None and step.id not in planned.runner.refused
            count = 1 if once else len(plan.buckets[step.id].members)
            words += [f"w{launched[True, step.id]}"] * count
        elif nodes[step.id].kind == NodeKind.WAIT:
            words.append(f"w{launched[False, nodes[step.id].inputs[0]]}")
    return " ".join(words)


def read(code: str) -> str:
    """The same of generated code, line by line."""
    words, launched = [], {}
    for line in code[code.rindex("def call("):].splitlines():
        result, _, call = line.strip().rpartition(" = ")
        if ours := re.match(r"torch\.ops\.bucketd\.(start|wait)_\.default\(.*, (\d+, \d+)\)$", call):
            place = launched.setdefault(ours[2], sum(word[0] == "L" for word in words))
            words.append(f"{'L' if ours[1] == 'start' else 'w'}{place}")
        elif call.startswith("torch.ops._c10d_functional.wait_tensor."):
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


def compiled(train):
    """What train() returns, and what Dynamo made meanwhile: guards on sizes, by graph."""
    clear_compilation_metrics()
    found = train()
    return found, [made.shape_env_guard_count for made in get_compilation_metrics() if made.shape_env_guard_count is not None]


class Run:
    """What the graphs of one training were planned and compiled to."""

    def __init__(self):
        self.planned, self.graphs, self.codes, self.keys = [], [], [], []
        counters.clear()

    def on_plan(self, planned):
        assert planned.normalized.graph.costs == "inductor"
        targets = [str(node.target) for node in planned.module.graph.nodes]
        self.graphs.append(" ".join("w" if "wait" in t else "L" for t in targets if _LAUNCHES.match(t)))
        self.planned.append(planned)

    def backend(self, **options):
        made = bucketd.backend(compiler="inductor", on_plan=self.on_plan, **{**PLANNER, **options})
        return functools.partial(made, inner_compile=self.keep)

    def keep(self, gm, inputs, **more):
        """Inductor's compile_fx_inner, of which we read what it made."""
        code = compile_fx_inner(gm, inputs, **more)
        self.codes.append(getattr(code, "source_code", ""))
        self.keys.append(getattr(code, "_fx_graph_cache_key", None))
        return code

    def told(self) -> dict:
        cache = {name.removeprefix("fxgraph_cache_"): n for name, n in counters["inductor"].items() if "fxgraph_cache" in name}
        return dict(scopes=[p.scope for p in self.planned], plans=[p.plan.sha256 for p in self.planned],
                    buckets=[len(p.plan.buckets) for p in self.planned], expected=[expected(p) for p in self.planned],
                    keys=self.keys, planned=self.graphs, code=[read(code) for code in self.codes if "_c10d_functional" in code or "bucketd.start_" in code], cache=cache)


class Features(Model):
    """With tied weights of uneven shards, a buffer that the forward writes, and, if asked, a graph break in the middle."""

    def __init__(self, width, hidden, breaks):
        super().__init__(width, hidden)
        self.breaks = breaks
        self.embedding, self.head = torch.nn.Embedding(16, width), torch.nn.Linear(width, 16)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens):
        self.seen += tokens.numel()
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
            if self.breaks:
                torch._dynamo.graph_break()
        return self.head(x).float().logsumexp(-1).sum()


def features(mesh, width, hidden, breaks=False):
    torch.manual_seed(0)
    model = simple_fsdp.shard(Features(width, hidden, breaks), mesh, torch.bfloat16, torch.float32)
    model.head._parameters["weight"] = model.embedding._parameters["weight"]
    return model


class Cases:
    def __init__(self):
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
        self.generator = torch.Generator()

    def tokens(self, shape=(2, 5)):
        return torch.randint(0, 13, shape, generator=self.generator)

    def train(self, model, step, accumulate=1, evaluate=False, batches=((2, 5),) * STEPS) -> dict:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
        self.generator.manual_seed(RANK)
        torch.manual_seed(RANK)  # of dropout
        losses = []
        for shape in batches:
            for _ in range(accumulate):
                loss = step(self.tokens(shape))
                loss.backward()
                losses.append(loss.view(1))
            optimizer.step()
            optimizer.zero_grad()
            if evaluate:
                with torch.no_grad():
                    losses.append(step(self.tokens()).view(1))
        return dict(weights=sha([*model.parameters(), *(buffer.view(-1) for buffer in model.buffers())]), losses=sha(losses))

    def whole(self, make, backend, dynamic=None, **how) -> dict:
        torch._dynamo.reset()
        model = make()
        return self.train(model, torch.compile(model, backend=backend, dynamic=dynamic), **how)

    def sharded(self, blocks=1):
        return sharded_model(self.mesh, 6, 12, blocks)

    def unplanned(self):
        return self.whole(self.sharded, "inductor")

    def planned(self, mode):
        run = Run()
        options = dict(buckets="embedding,blocks.0+head") if mode == "manual" else {}
        return {**self.whole(self.sharded, run.backend(mode=mode, **options)), **run.told()}

    def executor(self, mode):
        """As planned(), with the buckets run by libbucket_executor."""
        run = Run()
        found = self.whole(self.sharded, run.backend(mode=mode, executor="bucketd", executor_timeout=60.0))
        ran = [bucket in each.runner._begun for each in run.planned for bucket in range(len(each.plan.buckets))]
        return {**found, **run.told(), "ran": ran, "refused": [text for each in run.planned for text in each.runner.refused.values()]}

    def both(self, train) -> dict:
        """train(backend) without a plan, and with one."""
        run = Run()
        unplanned, plain = compiled(lambda: train("inductor"))
        found, planned = compiled(lambda: train(run.backend()))
        return dict(unplanned=unplanned, found=found, compiled=[plain, planned], **run.told())

    def tied_accumulated_evaluated(self):
        def make():
            return features(self.mesh, 6, 12)

        return self.both(lambda backend: self.whole(make, backend, accumulate=2, evaluate=True))

    def graph_breaks(self):
        return self.both(lambda backend: self.whole(lambda: features(self.mesh, 6, 12, breaks=True), backend))

    def blocks_alone(self):
        def train(backend):
            torch._dynamo.reset()
            model = self.sharded(blocks=2)
            for block in model.blocks:
                block.compile(backend=backend)
            return self.train(model, model)

        return self.both(train)

    def lengths(self, dynamic):
        """Another sequence length in every step, declared or found out by PyTorch, and a small batch at the end."""
        batches = [(2, 5), (2, 9), (2, 7), (1, 4)]
        return self.both(lambda backend: self.whole(self.sharded, backend, dynamic=dynamic == "declared" or None, batches=batches))

    def checkpointed_attention(self):
        def make():
            torch.manual_seed(1)
            return CheckpointedModel(6)

        return self.both(lambda backend: self.whole(make, backend))

    def experts(self):
        """Tokens go where the router sends them: how many come back is a number that the code itself reads."""
        def make():
            torch.manual_seed(0)
            model = ExpertModel(8, self.mesh.get_group(), layers=1)
            for module in model.everywhere():
                simple_fsdp.shard(module, self.mesh, torch.bfloat16, torch.float32)
            return model

        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            return self.both(lambda backend: self.whole(make, backend))

    def own_stack(self):
        """Somebody's own backend over Inductor, that plans by a pass and compiles by ours."""
        run = Run()

        def compiler(kind, plan):
            def compile_part(gm, inputs):
                more = dict(is_backward=kind == "bw")
                if not plan:
                    return compile_fx_inner(gm, inputs, **more)
                bucketd.plan_pass(gm, inputs, kind=kind, fused=True, on_plan=run.on_plan, **PLANNER)
                return bucketd.inductor.compile_fx_inner(gm, inputs, inner_compile=run.keep, **more)

            return compile_part

        def stack(plan):
            return aot_autograd(fw_compiler=compiler("fw", plan), bw_compiler=compiler("bw", plan), decompositions=select_decomp_table())

        return dict(unplanned=self.whole(self.sharded, stack(False)), found=self.whole(self.sharded, stack(True)), **run.told())


    def page(self):
        """What client/python/TRAINERS.md shows, as it stands there: the first loss by each way, and the plans of the third."""
        (whole,) = blocks("torch.compile with Inductor", "python")
        backend, aten = blocks("Your own stack over Inductor", "python")
        names = dict(torch=torch, bucketd=bucketd)
        run, plan_pass = Run(), bucketd.plan_pass  # whose costs Run checks

        def first_loss(model, make_step):
            torch._dynamo.reset()
            self.generator.manual_seed(RANK)
            names["model"] = model
            loss = make_step(model)(self.tokens())
            loss.backward()
            return loss.item()

        def as_it_stands(model):
            exec(whole, names)
            return names["step"]

        def own_backend(model):
            exec(backend, names)
            return torch.compile(model, backend=names["backend"])

        def own_aten(model):
            def compiler(gm, inputs):
                given = dict(names, gm=gm, example_inputs=inputs, context=None)
                bucketd.plan_pass = functools.partial(plan_pass, on_plan=run.on_plan)
                exec(aten, given)
                return given["compiled"]

            return torch.compile(model, backend=aot_autograd(fw_compiler=compiler, bw_compiler=compile_fx_inner,
                                                             decompositions=select_decomp_table()))

        losses = [first_loss(self.sharded(), way) for way in (as_it_stands, own_backend, own_aten)]
        return dict(found=losses, own_plans=len(run.planned))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases = Cases()
    # Where shards are uneven and the folder is one, PyTorch 2.13's AOTAutograd cache takes one rank's code for another's.
    with torch._functorch.config.patch(enable_autograd_cache=False):
        for asked in sys.argv[1:]:
            name, *arguments = asked.split(":")
            found = getattr(cases, name)(*arguments)
            print(json.dumps({"case": asked, "rank": RANK, **found}), flush=True)
            dist.barrier()
    dist.destroy_process_group()


main()
