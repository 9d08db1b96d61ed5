"""What every run of the example shares: the eager reference, the data, the loop, and what is measured around it."""

from __future__ import annotations

import atexit
import dataclasses
import hashlib
import os
import sys
import time
from typing import NoReturn

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

# torch.compile's aten-level backend, with the partitioner that bucketd's backend uses: equal graphs, without a plan.
UNPLANNED = "aot_eager_default_partitioner"

_KINDS = {"allgather": "all_gather", "reduce_scatter": "reduce_scatter", "allreduce": "all_reduce"}


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
    rank_shift: int = 0  # each rank gets the data of the rank that is this much higher: the same sums, added in another order

    def step(self, step: int, rank: int):
        """(tokens, next tokens, factor of the loss)."""
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
        data = _local(tensor.detach()).contiguous().cpu()
        sha.update(str(tuple(data.shape)).encode())
        sha.update(data.view(torch.uint8).numpy().tobytes() if data.numel() else b"")
    return sha.digest()


def over_all_ranks(own: bytes) -> str:
    """SHA-256 of every rank's digest, in order of ranks."""
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return hashlib.sha256(b"".join(everyone)).hexdigest()


@dataclasses.dataclass
class Result:
    name: str
    weights: str  # digest over all local shards of all ranks
    gradients: str  # ... over those of the gradients, and of the weights behind them, of every step
    losses: list[float]
    step_ms: list[float]  # without the first, which holds the compilation
    collectives: dict[str, int]  # launched in one step by this rank, by kind


def count_collectives(profile) -> dict[str, int]:
    """Collectives that this process launched, by kind, as torch.profiler saw them."""
    found = dict.fromkeys(_KINDS.values(), 0)
    for event in profile.events():
        if event.name.startswith("c10d::"):
            for part, kind in _KINDS.items():
                found[kind] += part in event.name
    return found


class Training:
    """AdamW on the local shards, element by element. `call(tokens, targets)` is the loss."""

    def __init__(self, name: str, model, call, data: Data, lr: float = 0.01):
        self.name, self.model, self.call, self.data = name, model, call, data
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=lr, foreach=False)
        self.gradients = hashlib.sha256()
        self.done = 0
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.collectives: dict[str, int] = {}

    def step(self) -> float:
        """One timed step; its milliseconds."""
        begin = time.perf_counter()
        self._forward_backward()
        digest_of_step = self._update()
        self.seconds.append(time.perf_counter() - begin)
        self.gradients.update(digest_of_step())
        return 1000 * self.seconds[-1]

    def profiled_step(self) -> None:
        """One step more, counted and not timed."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            self._forward_backward()
        self.collectives = count_collectives(profile)
        self.gradients.update(self._update()())

    def result(self) -> Result:
        """Of all ranks: every rank must ask."""
        milliseconds = [1000 * seconds for seconds in self.seconds]
        return Result(self.name, over_all_ranks(digest(self.parameters)), over_all_ranks(self.gradients.digest()),
                      self.losses, milliseconds[1:], self.collectives)

    def _forward_backward(self) -> None:
        tokens, targets, scale = self.data.step(self.done, (dist.get_rank() + self.data.rank_shift) % dist.get_world_size())
        loss = self.call(tokens, targets)
        (loss * scale).backward()
        self.losses.append(loss.item())
        self.done += 1

    def _update(self):
        gradients = [parameter.grad for parameter in self.parameters]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return lambda: digest(gradients + self.parameters)


def leave(status: int) -> NoReturn:
    """Ends the process group and the process.

    A thread of gloo may let go of the last collective's tensors late. If Python is being taken down by then, PyTorch 2.13 aborts with
    "terminate called without an active exception" (TensorImpl's destructor asks for the interpreter). So exit functions run, and the
    interpreter is not taken down.
    """
    dist.destroy_process_group()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
