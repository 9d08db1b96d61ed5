"""How a backend's graphs come to a plan, in a process that stands for all ranks: their numbers, their prices, and what goes on meanwhile."""

import gc
import pathlib
import sys
import threading
import time

import pytest
import torch
from fx_graphs import Builder, result
from inductor_counters import fake_mesh
from planners import planner

import bucketd
from bucketd import agreement, apply, capture, client, collector, fusion, wire

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples"))

from sharded_model import sharded_model  # noqa: E402


def test_a_graph_without_collectives_has_no_number_so_one_rank_may_compile_it_alone():
    scopes = []
    with planner() as one, fake_mesh() as mesh:
        backend = bucketd.backend(address=one.address, on_plan=lambda planned: scopes.append(planned.scope))
        torch.compile(lambda x: (x.mean(), x.std()), backend=backend)(torch.arange(8.0))
        model = sharded_model(mesh, 4, 6, blocks=1)
        torch.compile(model, backend=backend)(torch.zeros(2, 4, dtype=torch.int64)).backward()
    assert scopes == ["0/fw", "0/bw"]


def test_a_compiled_model_can_be_copied_and_its_copies_run_by_the_plan_of_its_code():
    """As the average of its weights is, which is made before the first step, or later."""
    scopes = []
    with planner() as one, fake_mesh() as mesh:
        backend = bucketd.backend(address=one.address, on_plan=lambda planned: scopes.append(planned.scope))
        compiled = torch.compile(sharded_model(mesh, 4, 6, blocks=1), backend=backend)
        tokens = torch.zeros(2, 4, dtype=torch.int64)
        averages = [torch.optim.swa_utils.AveragedModel(compiled)]
        compiled(tokens).backward()
        averages.append(torch.optim.swa_utils.AveragedModel(compiled))
        for average in averages:
            average.update_parameters(compiled)
            average(tokens).backward()
            assert all(p.grad is not None for p in average.parameters())
    assert set(scopes) == {"0/fw", "0/bw"}


def test_blocks_that_are_compiled_alone_have_their_own_part_of_the_models_order(caplog):
    """Which names its parameters from the root on: payloads of blocks kept the graph's order instead."""
    plans = []
    with planner() as one, fake_mesh() as mesh:
        model = sharded_model(mesh, 4, 6, blocks=2)
        backend = bucketd.backend(address=one.address, model=model, mode="manual", buckets="*", on_plan=plans.append)
        for block in model.blocks:
            block.compile(backend=backend)
        model(torch.zeros(2, 4, dtype=torch.int64)).backward()
    assert plans and not [d for planned in plans for d in planned.plan.diagnostics if d.code == "payload-order-unknown"]
    assert "has none of the parameters" not in caplog.text


def test_an_order_that_fits_no_graph_is_said_to_once(caplog):
    with planner() as one, fake_mesh() as mesh:
        model = sharded_model(mesh, 4, 6, blocks=1)
        parts = [model.blocks[0], model.head]
        backend = bucketd.backend(address=one.address, model=torch.nn.Linear(1, 1))
        step = torch.compile(lambda x: parts[0](x) + parts[1](x).sum(), backend=backend)
        for size in (2, 3):
            step(torch.zeros(size, 4, dtype=torch.bfloat16)).sum().backward()
    assert len([text for text in caplog.messages if "a graph has none of the parameters that model= and param_order= name (weight, ...)" in text]) == 1


def plan(one, **more):
    """What a plan for a small graph came to."""
    b, plans = Builder(), []
    shards = [b.parameter(f"{name}.weight", 2, 3) for name in "ab"]
    gm = b.output([b.wait(b.gather(shard)) for shard in shards], [result(), result(1)])
    bucketd.plan_pass(gm, kind="fw", context=b.context, address=one.address, numerics="exact", on_plan=plans.append, **{"mode": "greedy", **more})
    return plans


def test_what_a_plan_does_not_keep_to_is_told_of_and_once(caplog):
    with planner() as one, fake_mesh():
        for _ in range(2):
            plan(one, mode="manual", buckets="a+b,c")
            plan(one, mode="auto", memory_limit="0.5x")
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 2, said
    assert said[0].startswith("bucketd: entry c: the graph has no module or parameter c; near it: ")
    assert "the limit is " in said[1]


def test_code_that_stays_without_a_plan_is_told_of_each_time_that_it_is_compiled(caplog):
    with fake_mesh() as mesh:
        compiled = torch.compile(sharded_model(mesh, 4, 6, blocks=1), backend=bucketd.backend(address="127.0.0.1:1", fallback="unplanned"),
                                 dynamic=False)
        counted = [bucketd.counters()["unplanned"]]
        for size in (2, 3):
            compiled(torch.zeros(size, 4, dtype=torch.int64)).backward()
            counted.append(bucketd.counters()["unplanned"])
    assert [after - before for before, after in zip(counted, counted[1:], strict=False)] == [2, 2]
    assert {f"bucketd: {scope} is compiled again and stays without a plan" for scope in ("0/fw", "0/bw")} <= set(caplog.messages)


def test_code_whose_graph_was_refused_is_compiled_again_without_asking_the_other_ranks(monkeypatch, caplog):
    """Of whom none may compile again: the one that does would wait for them until its deadline."""
    arrived = []
    monkeypatch.setattr(capture, "capture_graph", lambda *_: {}["missing"])
    monkeypatch.setattr(agreement.Agreement, "arrive", lambda self, scope: arrived.append(scope))
    with fake_mesh() as mesh:
        compiled = torch.compile(sharded_model(mesh, 4, 6, blocks=1), backend=bucketd.backend(fallback="unplanned"), dynamic=False)
        losses = [compiled(torch.zeros(size, 4, dtype=torch.int64)) for size in (2, 3)]
        for loss in reversed(losses):  # the backward of what was compiled again comes first
            loss.backward()
    assert arrived == ["0/fw", "0/bw"]
    assert {f"bucketd: {scope} is compiled again and stays without a plan" for scope in ("0/fw", "0/bw")} <= set(caplog.messages)


def test_another_model_behind_a_reset_is_asked_for_where_the_first_one_has_no_plan():
    """Dynamo numbers code anew then."""
    with fake_mesh() as mesh:
        backend = bucketd.backend(address="127.0.0.1:1", fallback="unplanned")
        for blocks in (1, 2):
            torch._dynamo.reset()
            torch.compile(sharded_model(mesh, 4, 6, blocks=blocks), backend=backend)(torch.zeros(2, 4, dtype=torch.int64)).backward()
    assert [len(backend.session._agreed[code, kind]) for code, kind in backend.session._agreed] == [2, 2]


def fail_halfway(normalized, captured):
    normalized.graph.nodes[0].memory_bytes = 4711
    raise KeyError("a new operation")


def test_kernels_that_cannot_be_predicted_are_priced_one_by_one_and_that_is_said_once(monkeypatch, caplog):
    with planner() as one, fake_mesh():
        (by_operation,) = plan(one)
        monkeypatch.setattr(fusion, "use_inductor_costs", fail_halfway)
        fused = [found for _ in range(2) for found in plan(one, fused=True)]
    assert {found.digest for found in fused} == {by_operation.digest} and fused[0].normalized.graph.costs == ""
    assert sum(text.startswith("bucketd: what Inductor fuses cannot be predicted") and "KeyError: 'a new operation'" in text
               for text in (record.getMessage() for record in caplog.records if record.levelname == "WARNING")) == 1


def test_a_fault_of_ours_in_describing_a_graph_is_one_that_may_be_fallen_back_from(monkeypatch):
    monkeypatch.setattr(capture, "capture_graph", lambda *_: {}["missing"])
    with planner() as one, fake_mesh():
        assert plan(one, fallback="unplanned") == []
        with pytest.raises(bucketd.GraphRefused, match="cannot be described, which is a fault of bucketd's: KeyError: 'missing'"):
            plan(one)


def test_garbage_is_collected_while_others_are_waited_for_and_not_while_a_graph_is_planned(monkeypatch):
    seen = []

    def note(of, name):
        before = getattr(of, name)
        monkeypatch.setattr(of, name, lambda *given, **more: seen.append((name, gc.isenabled())) or before(*given, **more))

    for of, name in ((capture, "capture_graph"), (client.PlannerClient, "get_plan"), (wire, "to_proto"), (apply, "prepare")):
        note(of, name)
    with planner() as one, fake_mesh():
        assert plan(one)
    assert dict(seen) == {"capture_graph": False, "get_plan": True, "to_proto": False, "prepare": False} and gc.isenabled()
    with collector.off():
        heard = agreement.hearing_signals(lambda _: time.sleep(2 * agreement._LOOK) or gc.isenabled())
        assert heard and not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_stays_off_for_as_long_as_one_thread_wants_it_off():
    begun, end = threading.Event(), threading.Event()

    def other():
        with collector.off():
            begun.set()
            end.wait(60)

    thread = threading.Thread(target=other)
    with collector.off(), collector.off():
        thread.start()
        begun.wait(60)
        with collector.on():
            assert not gc.isenabled()
    assert not gc.isenabled()
    end.set()
    thread.join()
    assert gc.isenabled()
    gc.disable()
    try:
        with collector.off(), collector.on():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
