"""One rank of a job that trains through bucketd.backend, once for each case; prints what came of each, as JSON."""

import json
import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from checkpointed_model import CheckpointedModel
from fx_graphs import Builder, result
from sharded_model import sharded_model
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.device_mesh import init_device_mesh

import bucketd
from bucketd import asking, calls, client, embedded
from bucketd._wire.proto import plan_pb2
from bucketd.mesh import creation_order, group_ranks

RANK = int(os.environ["RANK"])
ADDRESS = os.environ.get("PLANNER", "")
PID = int(os.environ.get("PLANNER_PID", "0"))
NOBODY = "unix:/nowhere/at/all"


class Step:
    """One forward and backward of a fresh model; every case starts from the same weights."""

    def __init__(self):
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))

    def model(self):
        return sharded_model(self.mesh, 6, 7, blocks=1)

    def __call__(self, backend, between=lambda: None):
        torch._dynamo.reset()
        model = self.model()
        generator = torch.Generator().manual_seed(RANK)
        loss = torch.compile(model, backend=backend)(torch.randint(0, 13, (2, 5), generator=generator))
        between()
        loss.backward()
        bits = [loss.detach().view(torch.int32).tolist()]
        bits += [p.grad.to_local().view(torch.int32).tolist() for p in model.parameters()]
        return bits


def outcome(call) -> dict:
    begin = time.monotonic()
    try:
        result = call()
    except Exception as error:
        # Dynamo wraps what a backend raises.
        inner = getattr(error, "inner_exception", error)
        return {"error": type(inner).__name__, "text": str(inner), "seconds": time.monotonic() - begin}
    return {"bits": result, "seconds": time.monotonic() - begin}


class Cases:
    def __init__(self):
        self.step = Step()
        self.planned = []

    def backend(self, **options):
        self.planned = []
        return bucketd.backend(**{**dict(on_plan=self.planned.append, address=ADDRESS, deadline=60), **options})

    def told(self) -> dict:
        return {p.scope: [p.plan.sha256, len(p.plan.buckets), p.source, sorted({d.code for d in p.plan.diagnostics})]
                for p in self.planned}

    def plain(self):
        return outcome(lambda: self.step(aot_autograd(fw_compiler=lambda gm, _: session_boxed(gm))))

    def planned_exact(self):
        found = outcome(lambda: self.step(self.backend(numerics="exact")))
        return {**found, "plans": self.told()}

    def checkpointed_attention(self):
        """The same step without and with a plan."""
        def step(backend):
            torch._dynamo.reset()
            torch.manual_seed(1)  # of weights and dropout
            model = CheckpointedModel(8)
            loss = torch.compile(model, backend=backend)(torch.randint(0, 13, (2, 5)))
            loss.backward()
            return [t.detach().view(torch.int32).tolist() for t in [loss, *(p.grad for p in model.parameters())]]

        plain = aot_autograd(fw_compiler=lambda gm, _: session_boxed(gm))
        found = outcome(lambda: [step(backend) for backend in (plain, self.backend(numerics="exact"))])
        return {**found, "plans": self.told()}

    def planned_again(self):
        found = outcome(lambda: self.step(self.backend(numerics="exact")))
        return {**found, "plans": self.told()}

    def private_planner(self):
        found = outcome(lambda: self.step(self.backend(address=None, numerics="exact")))
        own = asking._private_planner
        return {**found, "plans": self.told(), "started": own is not None and own._process.pid}

    def first_rank_plans_for_all(self):
        found = outcome(lambda: self.step(self.backend(address=None, numerics="exact", embedded="rank0")))
        return {**found, "plans": self.told()}

    def as_a_pass(self):
        def compiler(kind):
            def compile_part(gm, inputs):
                planned = bucketd.plan_pass(gm, inputs, kind=kind, address=ADDRESS, numerics="exact",
                                            on_plan=self.planned.append)
                return session_boxed(planned)

            return compile_part

        self.planned = []
        found = outcome(lambda: self.step(aot_autograd(fw_compiler=compiler("fw"), bw_compiler=compiler("bw"))))
        return {**found, "plans": self.told()}

    def on_twins(self):
        """Twice, with how many groups there are after each."""
        there = [len(creation_order())]

        def step():
            found = self.step(self.backend(numerics="exact", mode="transformer_block", twin_groups=True))
            there.append(len(creation_order()))
            return found

        found = outcome(lambda: [step(), step()])
        groups = {n.args[-1] for p in self.planned for n in p.module.graph.nodes if "reduce_scatter" in str(n.target)}
        lanes = sorted({(b.kind, b.lane) for p in self.planned for b in p.plan.buckets})
        return {**found, "there": there, "lanes": lanes, "twins": [list(map(group_ranks, groups)), "0" in groups],
                "plans": self.told()}

    def own_passes_partitioner_and_compiler(self):
        """What each was called with: collectives by kind, in front of the plan and behind it."""
        seen = []

        def note(what):
            def run(gm, inputs):
                launches = [str(n.target) for n in gm.graph.nodes if "_c10d_functional" in str(n.target)]
                seen.append([what, sum("gather" in name for name in launches), len(inputs)])

            return run

        def compiler(gm, inputs):
            seen.append(["compiler"])
            return gm.forward

        def step(**more):
            return self.step(self.backend(numerics="exact", mode="transformer_block", **more))

        found = outcome(lambda: [step(passes=[note("before"), "plan", note("after")], compiler=compiler), step(passes=()),
                                 step(partitioner="min_cut")])
        return {**found, "seen": seen, "plans": self.told()}

    def several_nodes(self):
        embedded.node_identity = lambda: f"node {RANK // 2}"
        return outcome(lambda: self.step(self.backend(address=None)))

    def another_option_on_rank_3(self):
        return outcome(lambda: self.step(self.backend(numerics="free" if RANK == 3 else "exact")))

    def another_graphs_plan_on_rank_2(self):
        true_get_plan = client.PlannerClient.get_plan

        def get_plan(to, graph, digest, *rest, **more):
            reply = true_get_plan(to, graph, digest, *rest, **more)
            if RANK == 2:
                other = type(client.planner_pb2.PlanReply())(plan=reply.plan)
                made = plan_pb2.Plan.FromString(other.plan)
                made.graph_digest = bytes(32)
                reply = client.dataclasses.replace(reply, plan=made.SerializeToString())
            return reply

        client.PlannerClient.get_plan = get_plan
        try:
            return outcome(lambda: self.step(self.backend()))
        finally:
            client.PlannerClient.get_plan = true_get_plan

    def groups_are_swapped_on_rank_1(self):
        """A graph that uses one of two groups over the same half of the ranks: the first of them, the second, and on rank 1
        the second where the others mean the first."""
        halves = [dist.new_group(ranks) for _ in range(2) for ranks in ([0, 1], [2, 3])]
        first, second = (group for group in halves if group is not dist.GroupMember.NON_GROUP_MEMBER)

        def plan(group):
            b = Builder()
            shards = [b.parameter(f"{name}.weight", 2, 3) for name in "ab"]
            gathered = [b.wait(b.gather(shard, 2, group.group_name)) for shard in shards]
            gm = b.output(gathered, [result(), result(1)])
            bucketd.plan_pass(gm, kind="fw", context=b.context, address=ADDRESS, mode="greedy", on_plan=self.planned.append)
            return [self.planned[-1].digest.hex(), self.planned[-1].source]

        return {"equal": [plan(first), plan(second)], **outcome(lambda: plan(second if RANK == 1 else first))}

    def nobody_answers(self):
        return outcome(lambda: self.step(self.backend(address=NOBODY, deadline=3)))

    def nobody_answers_and_that_is_fine(self):
        found = outcome(lambda: self.step(self.backend(address=NOBODY, deadline=3, fallback="unplanned")))
        return {**found, "plans": self.told()}

    def planning_is_switched_off(self):
        def switch(*command):
            dist.barrier()
            if RANK == 0:
                bucketctl = os.path.join(os.path.dirname(embedded.find_binary()), "bucketctl")
                subprocess.run([bucketctl, *command, "--server", ADDRESS], check=True, capture_output=True)
            dist.barrier()

        def step(**options):
            found = outcome(lambda: self.step(self.backend(deadline=20, **options)))
            return {**found, "plans": self.told()}

        switch("disable", "--why", "the fabric is being serviced")
        # Compiled graphs of the failing step are left behind: it comes last.
        found = {"job": step(job=bucketd.Job("off")), "asked for": step(fallback="unplanned"), "error": step()}
        switch("enable")
        return {**found, "on again": step(numerics="exact")}

    def killed_between_forward_and_backward(self):
        def kill():
            dist.barrier()
            if RANK == 0:
                os.kill(PID, signal.SIGKILL)
            dist.barrier()

        found = outcome(lambda: self.step(self.backend(mode="transformer_block", numerics="free", deadline=5), kill))
        return {**found, "plans": self.told()}

    def private_planner_killed_between_forward_and_backward(self):
        def kill():
            dist.barrier()
            if RANK == 0:
                process = asking._private_planner._process
                process.kill()
                process.wait()
            dist.barrier()

        found = outcome(lambda: self.step(self.backend(address=None, numerics="exact"), kill))
        return {**found, "plans": self.told()}

    def rank_1_cannot_compile_the_backward(self):
        def compiler(gm, _inputs):
            if RANK == 1 and len(self.planned) == 2:
                raise OSError("no space left")
            return session_boxed(gm)

        found = outcome(lambda: self.step(self.backend(compiler=compiler, fallback="unplanned")))
        return {**found, "plans": self.told()}

    def killed_during_an_upload(self):
        once = calls.Route.once

        def send(to, method, request, until):
            def dying():
                for part in request():
                    yield part
                    os.kill(PID, signal.SIGKILL)  # after the header

            return once(to, method, dying if method == "UploadGraph" else request, until)

        calls.Route.once = send
        try:
            return outcome(lambda: self.step(self.backend(deadline=5)))
        finally:
            calls.Route.once = once

    def rank_1_never_comes(self):
        if RANK == 1:
            self.step.model()  # which the ranks do together
            return {}
        return outcome(lambda: self.step(self.backend(deadline=6)))


def session_boxed(gm):
    from bucketd.boxed import boxed

    return boxed(gm)


def main():
    dist.init_process_group("gloo")
    cases = Cases()
    for name in sys.argv[1:]:
        found = getattr(cases, name)()
        print(json.dumps({"case": name, "rank": RANK, **found}), flush=True)
        dist.barrier()
    dist.destroy_process_group()


main()
