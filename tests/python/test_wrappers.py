"""Models whose wrapper communicates outside of the graph: nothing to plan, and somebody says so."""

import pickle

import pytest
import torch
from inductor_counters import fake_mesh
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import bucketd
from bucketd import torch_backend


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


def trained(rank, world, monkeypatch, caplog, wrap=lambda model, mesh: model, also=lambda backend: None):
    """What is said where `world` ranks each train a model whose blocks and head are compiled, twice."""
    monkeypatch.setattr(torch_backend, "rank_and_world", lambda: (rank, world))
    before = bucketd.counters()["graphs_without_collectives"]
    with fake_mesh() as mesh:
        backend = bucketd.backend()
        also(backend)
        model = wrap(Net(), mesh)
        for part in (*model.blocks, model.head):
            part.compile(backend=backend)
        for size in (4, 5):
            model(torch.randn(size, 8)).sum().backward()
    assert bucketd.counters()["graphs_without_collectives"] - before >= 4  # forward and backward of a block, and of the head
    return [record.message for record in caplog.records if record.levelname == "WARNING" and "a backward without collectives" in record.message]


@pytest.mark.parametrize("wrap", [lambda model, mesh: model, lambda model, mesh: fully_shard(model, mesh=mesh)], ids=["forgotten", "around"])
def test_who_trains_on_several_ranks_without_a_collective_is_told_once(wrap, monkeypatch, caplog):
    assert len(trained(0, 2, monkeypatch, caplog, wrap)) == 1


@pytest.mark.parametrize("rank, world", [(1, 2), (0, 1)], ids=["the other rank", "a rank alone"])
def test_nobody_else_is_told(rank, world, monkeypatch, caplog):
    assert not trained(rank, world, monkeypatch, caplog)


def test_a_part_without_collectives_beside_one_that_has_some_is_nothing_to_tell_of(monkeypatch, caplog):
    def had(backend):
        backend._had_collectives = True

    assert not trained(0, 2, monkeypatch, caplog, also=had)


def test_who_only_evaluates_is_not_told(monkeypatch, caplog):
    monkeypatch.setattr(torch_backend, "rank_and_world", lambda: (0, 2))
    with torch.no_grad():
        torch.compile(Net(), backend=bucketd.backend())(torch.randn(4, 8))
    assert "without collectives" not in caplog.text


def test_inductors_options_for_another_compiler_are_said_to_be_read_by_nothing_once(caplog):
    step = torch.compile(Net(), backend=bucketd.backend(), mode="max-autotune", dynamic=False)
    for size in (4, 5):
        step(torch.randn(size, 8))
    told = [text for text in caplog.messages if "nothing reads" in text]
    assert told == ["bucketd: nothing reads mode='max-autotune': compiler=\"inductor\" would"]


def test_who_gives_the_function_where_a_backend_is_wanted_is_told_what_to_write():
    with pytest.raises(Exception, match=r"torch.compile\(model, backend=bucketd.backend\(\)\)"):
        torch.compile(torch.sin, backend=bucketd.backend)(torch.ones(2))


@pytest.mark.parametrize("how", [{}, {"partitioner": "min_cut", "job": bucketd.Job("saved"), "options": {"effort": 3}}, {"compiler": "inductor"}])
def test_a_compiled_model_is_saved_with_what_its_backend_was_asked_for(how):
    backend = bucketd.backend(**how)
    compiled = torch.compile(Net(), backend=backend)
    again, other = pickle.loads(pickle.dumps((compiled, backend)))
    assert other is not backend and other.session.settings == backend.session.settings and other.compiler == backend.compiler
    if not how:
        x = torch.randn(4, 8)
        assert torch.equal(again(x), compiled(x))
