"""Models whose wrapper communicates outside of the graph: nothing to plan, and somebody says so."""

import pytest
import torch
from inductor_counters import fake_mesh
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import bucketd


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.linear(x)) + x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sharded(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize("wrap, who", [
    (sharded, "fully_shard"),
    (lambda model, mesh: DistributedDataParallel(model), "DistributedDataParallel"),
    (lambda model, mesh: model, None),
], ids=["fully_shard", "DDP", "none"])
def test_a_wrapped_model_is_told_once_that_there_is_nothing_to_plan(wrap, who, caplog):
    with fake_mesh() as mesh:
        step = torch.compile(wrap(Net(), mesh), backend=bucketd.backend())
        for size in (4, 5):
            step(torch.randn(size, 8))
    told = [text for text in caplog.messages if "a graph without collectives has no plan" in text]
    assert [f": {who} communicates outside" in text for text in told] == [True] * (who is not None), told


def test_inductors_options_for_another_compiler_are_said_to_be_read_by_nothing_once(caplog):
    step = torch.compile(Net(), backend=bucketd.backend(), mode="max-autotune", dynamic=False)
    for size in (4, 5):
        step(torch.randn(size, 8))
    told = [text for text in caplog.messages if "nothing reads" in text]
    assert told == ["bucketd: nothing reads mode='max-autotune': compiler=\"inductor\" would"]
