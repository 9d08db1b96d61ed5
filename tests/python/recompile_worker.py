"""One rank of a job that Dynamo would have train eagerly beside another one's plan, once for each case; prints what came of each, as JSON:

  limit       rank 1 compiles once more than recompile_limit allows, rank 0 does not
  own_pass    the same with a backend of one's own that plans by a pass
  own_backend the same with a function around ours
  waited_for  the same while rank 0 waits for it elsewhere
  suppressed  compilation fails behind the agreement, and errors are suppressed
  compiler    Inductor's compilation fails on rank 1
  stance      what is not compiled yet shall run eagerly
  backward    the same where only the backward has collectives
  others      what another backend compiles comes to the limit
"""

import datetime
import functools
import json
import logging
import os
import sys

import torch
import torch.distributed as dist
from sharded_model import Model
from simple_fsdp import DDP, shard
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.device_mesh import init_device_mesh

import bucketd
from bucketd.boxed import boxed

ADDRESS, *CASES = sys.argv[1:]
RANK = int(os.environ["RANK"])
LIMIT = 2


class Images(torch.nn.Module):
    """A sample has some images, as a list of tensors: the number of them is part of the program."""

    def __init__(self):
        super().__init__()
        self.model = Model(8, 16, blocks=1)

    def forward(self, images):
        return self.model(images[0]) + 0 * sum(image.float().mean() for image in images)


def images(count):
    return [torch.ones(2, 4, dtype=torch.int64) for _ in range(count)]


@torch.no_grad()
def forwards(step, *counts):
    for count in counts:
        step(images(count))


def fails(_planned):
    raise RuntimeError("no compiler on this machine")


class Case:
    """A model and how it is compiled; each method is a case."""

    def __init__(self, mesh):
        torch._dynamo.reset()
        torch.manual_seed(0)
        self.mesh = mesh
        self.model = shard(Images(), mesh, torch.bfloat16, torch.float32)

    def to_the_limit(self, backend):
        step = torch.compile(self.model, backend=backend)
        forwards(step, *range(1, LIMIT + 1))
        return step

    def limit(self):
        step = self.to_the_limit(bucketd.backend(address=ADDRESS, deadline=20))
        if RANK == 1:
            forwards(step, LIMIT + 1)

    def own_pass(self):
        def by_pass(kind):
            return lambda gm, inputs: boxed(bucketd.plan_pass(gm, inputs, kind=kind, address=ADDRESS, deadline=20))

        step = self.to_the_limit(aot_autograd(fw_compiler=by_pass("fw"), bw_compiler=by_pass("bw")))
        if RANK == 1:
            forwards(step, LIMIT + 1)

    def own_backend(self):
        ours = bucketd.backend(address=ADDRESS, deadline=20)
        step = self.to_the_limit(lambda gm, inputs: ours(gm, inputs))
        if RANK == 1:
            forwards(step, LIMIT + 1)

    def waited_for(self):
        ours = bucketd.backend(address=ADDRESS, deadline=20)
        step, elsewhere = self.to_the_limit(ours), torch.compile(lambda images: self.model(images) + 1, backend=ours)
        forwards(step if RANK == 1 else elsewhere, LIMIT + 1)

    def suppressed(self):
        torch._dynamo.config.suppress_errors = True
        forwards(torch.compile(self.model, backend=bucketd.backend(address=ADDRESS, deadline=20, on_plan=fails)), 1)

    def compiler(self):
        def compile_part(gm, _inputs, **_more):
            return fails(gm) if RANK == 1 else boxed(gm)

        ours = bucketd.backend(address=ADDRESS, deadline=20, compiler="inductor")
        forwards(torch.compile(self.model, backend=functools.partial(ours, inner_compile=compile_part)), 1)

    def stance(self):
        step = torch.compile(self.model, backend=bucketd.backend(address=ADDRESS, deadline=20))
        forwards(step, 1)
        with torch.compiler.set_stance("eager_on_recompile"):
            if RANK == 0:
                forwards(step, 1)

    def backward(self):
        step = torch.compile(shard(Images(), self.mesh, torch.bfloat16, torch.float32, DDP), backend=bucketd.backend(address=ADDRESS, deadline=20))
        step(images(1)).sum().backward()
        with torch.compiler.set_stance("eager_on_recompile"):
            if RANK == 0:
                step(images(1))

    def others(self):
        forwards(torch.compile(self.model, backend=bucketd.backend(address=ADDRESS, deadline=20)), 1)
        summary = torch.compile(lambda images: sum(image.sum() for image in images), backend="eager")
        return {"sums": [int(summary(images(count))) for count in range(1, LIMIT + 3)]}


def main():
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("bucketd").addHandler(handler)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=45))
    torch._dynamo.config.recompile_limit = LIMIT
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    for name in CASES:
        case, found = Case(mesh), {}
        said.clear()
        try:
            found = getattr(case, name)() or {}
        except Exception as error:
            own = getattr(error, "inner_exception", error)  # Dynamo wraps what a backend raises
            found = {"error": type(own).__name__, "text": str(own)}
        print(json.dumps({"case": name, **found, "said": said}), flush=True)
        try:
            dist.barrier()
        except RuntimeError as error:  # a rank is elsewhere, which a test will miss
            print(error, flush=True)
            os._exit(0)
    dist.destroy_process_group()


main()
