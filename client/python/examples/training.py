"""What every run of the example shares: the eager reference, the data, the loop, and what is measured around it."""

from __future__ import annotations

import dataclasses
import hashlib
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


def shard_eager(model, mesh, param_dtype, reduce_dtype):
    """Eager FSDP2 over the units that people use: each block, [norm, output], the embedding, and what is left.

    Gradients are summed, not averaged, since that is what the redistribution of a parameter does; and inputs keep
    their dtype, since only parameters are cast there (the rotary angles stay in fp32).
    """
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard([model.norm, model.output], mesh=mesh, mp_policy=policy)
    fully_shard(model.tok_embeddings, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


@dataclasses.dataclass(frozen=True)
class Data:
    """Random tokens, the same in every run of a rank.

    spread_bits > 0 scales each rank's loss by its own power of two in [2^-spread_bits, 1], a new one each step: gradients
    of very unequal size, whose sum depends on the order in which ranks are added.
    """

    vocab: int
    batch: int = 2
    positions: int = 16
    spread_bits: int = 0
    seed: int = 17

    def step(self, step: int, rank: int):
        generator = torch.Generator().manual_seed(self.seed + 1009 * step + rank)
        tokens = torch.randint(0, self.vocab, (self.batch, self.positions + 1), generator=generator)
        scale = 1.0
        if self.spread_bits:
            scale = 2.0 ** -(self.spread_bits * torch.rand((), generator=generator).item())
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), scale


def _local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def digest(tensors) -> bytes:
    """SHA-256 of the local shards' bytes, in order."""
    sha = hashlib.sha256()
    for tensor in tensors:
        data = _local(tensor.detach()).contiguous()
        sha.update(str(tuple(data.shape)).encode())
        sha.update(data.view(torch.uint8).numpy().tobytes() if data.numel() else b"")
    return sha.digest()


def over_all_ranks(own: bytes) -> str:
    """SHA-256 of every rank's digest, in order of ranks."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return hashlib.sha256(b"".join(everyone)).hexdigest()


@dataclasses.dataclass
class Run:
    name: str
    weights: str  # digests over all local shards of all ranks
    gradients: str  # ... and over the gradients of every step
    losses: list
    step_ms: list  # the first one holds the compilation
    collectives: dict  # kind -> number in one step, on this rank


def count_collectives(profile) -> dict:
    """Collectives that the process group ran, by kind, whatever launched them."""
    found = dict.fromkeys(COLLECTIVES, 0)
    for event in profile.events():
        name = event.name.lower()
        if not name.startswith("gloo:"):
            continue
        for kind in COLLECTIVES:
            if kind in name:
                found[kind] += 1
    return found


def train(name, model, step_function, data: Data, steps: int, lr: float = 0.01, progress=None) -> Run:
    """`steps` steps of AdamW, element by element on the local shards; the last step is profiled and not timed."""
    rank = dist.get_rank()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=lr, foreach=False)
    gradients = hashlib.sha256()
    run = Run(name, "", "", [], [], {})

    def one_step(step):
        tokens, targets, scale = data.step(step, rank)
        loss = step_function(tokens, targets)
        (loss * scale).backward()
        run.losses.append(loss.item())

    for step in range(steps):
        begin = time.perf_counter()
        if step == steps - 1:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                one_step(step)
            run.collectives = count_collectives(profile)
        else:
            one_step(step)
        gradients.update(digest(p.grad for p in parameters))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step < steps - 1:
            run.step_ms.append(1000 * (time.perf_counter() - begin))
        if progress is not None:
            progress(name, step, run.losses[-1])
    run.weights = over_all_ranks(digest(parameters))
    run.gradients = over_all_ranks(gradients.digest())
    return run
