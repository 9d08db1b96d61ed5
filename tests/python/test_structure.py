"""Joint graphs that make_fx traced, without a word on what their inputs and outputs are: planned as with descriptors."""

import importlib
import pathlib
import pkgutil
import sys

import pytest
import torch
import torch.distributed as dist
from fx_graphs import Builder, aten
from planners import planner
from torch.distributed.tensor import DTensor
from torch.fx.experimental.proxy_tensor import make_fx

import bucketd
from bucketd.capture import capture_graph
from bucketd.graph import Direction, SlotKind
from bucketd.reshard import copy_module
from bucketd.step_context import CaptureContext
from bucketd.structure import describe, structural_context
from bucketd.tags import META_KEY, output_slots, tag_joint

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples"))

import llama  # noqa: E402
import simple_fsdp  # noqa: E402

CONFIG = llama.LlamaConfig(vocab=13, dim=9, layers=2, heads=3, kv_heads=1, head_dim=2, hidden=7, branch_scale=True)


def traced_by_make_fx(model, *inputs):
    """Of the local parts of its parameters and `inputs`, to the loss and the gradients by name."""
    held = dict(model.named_parameters())

    def put(name, value):
        owner, _, attribute = name.rpartition(".")
        model.get_submodule(owner)._parameters[attribute] = value

    def step(local, *inputs):
        leaves = {name: each.detach().requires_grad_() for name, each in local.items()}
        for name, leaf in leaves.items():
            like = held[name]
            put(name, DTensor.from_local(leaf, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()))
        loss = model(*inputs)
        return loss, dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))

    try:
        return make_fx(step)({name: each.to_local() for name, each in held.items()}, *inputs)
    finally:
        for name, value in held.items():
            put(name, value)


@pytest.fixture(scope="module")
def traced():
    """(joint graph as AOTAutograd has it, the same by make_fx, names of its parameters), for four ranks that are not there."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))
    with FakeTensorMode():
        model = simple_fsdp.shard(llama.Llama(CONFIG), mesh, torch.bfloat16, torch.float32)
        tokens = torch.zeros((2, 7), dtype=torch.int64)
        yield bucketd.trace_joint(model, (tokens, tokens)), traced_by_make_fx(model, tokens, tokens), [n for n, _ in model.named_parameters()]
    dist.destroy_process_group()


def without_descriptors(gm):
    gm = copy_module(gm)
    for node in gm.graph.nodes:
        for what in ("desc", META_KEY, "partitioner_tag", "autograd_backward"):
            node.meta.pop(what, None)
    return gm


def planned(gm, address, mode, **more):
    seen = []
    bucketd.plan_pass(copy_module(gm), address=address, ranks=[0], mode=mode, on_plan=seen.append, **more)
    return seen[0]


def buckets(planned, name_of=lambda name: name):
    nodes = planned.normalized.graph.nodes
    return [(each.kind, nodes[each.members[0]].direction, sorted(name_of(nodes[member].collective.parameter) for member in each.members))
            for each in planned.plan.buckets]


@pytest.mark.parametrize("mode", ["auto", "greedy"])
def test_a_graph_that_make_fx_traced_gets_the_buckets_that_descriptors_give(traced, mode):
    joint, by_make_fx, names = traced
    with planner() as one:
        expected = planned(joint.module, one.address, mode, context=joint.context)
        stripped = planned(without_descriptors(joint.module), one.address, mode)
        plain = planned(by_make_fx, one.address, mode)
    assert expected.plan.buckets and not any("desc" in node.meta for node in by_make_fx.graph.nodes)
    # AOTAutograd's placeholders are a shard and its mesh in turn.
    assert buckets(stripped, lambda name: names[int(name.rpartition("input")[2]) // 2]) == buckets(expected)
    assert stripped.plan.prediction == expected.plan.prediction
    assert buckets(plain, lambda name: names[int(name.rpartition("input")[2])]) == buckets(expected)
    assert plain.plan.prediction.collectives == expected.plan.prediction.collectives


@pytest.mark.parametrize("mode", ["auto", "transformer_block"])
def test_names_that_the_caller_knows_are_as_good_as_descriptors(traced, mode):
    joint, by_make_fx, names = traced
    with planner() as one:
        expected = planned(joint.module, one.address, mode, context=joint.context, param_order=names)
        named = planned(by_make_fx, one.address, mode, context=bucketd.context(by_make_fx, parameters=names), param_order=names)
    assert buckets(named) == buckets(expected)
    assert named.plan.bits == expected.plan.bits


def test_names_must_belong_to_tensors_of_the_graph(traced):
    joint, by_make_fx, names = traced
    with pytest.raises(ValueError, match=rf"parameters= names {len(names) + 3} inputs, the graph has {len(names) + 2}"):
        bucketd.context(by_make_fx, parameters=[*names, "x", "y", "z"])
    with pytest.raises(ValueError, match="parameters= names .*_scale, but input primals_2 is .*, no tensor"):
        bucketd.context(joint.module, parameters=names)


# -- by hand


def told(b, gm, context=None):
    """Roles of the inputs, and (kind, parameter) of the outputs."""
    describe(gm, context)
    context = structural_context(gm) if context is None else context
    return [(slot.kind, slot.parameter) for slot in output_slots(gm, context, joint=True)], context


def bare(names, outputs):
    """A builder whose inputs have no descriptors: of each name a shard, of `outputs` what a function of the shards makes."""
    b = Builder()
    shards = {name: b.parameter(name, *shape) for name, shape in names.items()}
    for node in shards.values():
        del node.meta["desc"]
    return b, b.output(outputs(b, shards))


def of(number):
    return SlotKind.PARAMETER_GRADIENT, f"input{number}"


LOSS = (SlotKind.OUTPUT, "")


def test_gradients_are_told_by_form_and_order():
    def outputs(b, shards):
        whole = {name: b.wait(b.gather(shard)) for name, shard in shards.items()}
        loss = b.call(aten.sum.default, whole["a"])
        return [loss, [b.wait(b.scatter(b.call(aten.neg.default, whole[name]))) for name in ("a", "c", "d")]]

    b, gm = bare({"a": (2, 3), "frozen": (4, 3), "c": (2, 3), "d": (2, 3)}, outputs)
    slots, _ = told(b, gm)
    assert slots == [LOSS, of(0), of(2), of(3)]


def test_gradients_in_another_order_are_told_by_form_alone():
    b, gm = bare({"a": (2, 3), "b": (4, 3)}, lambda b, shards: [
        b.wait(b.scatter(b.wait(b.gather(shards[name])))) for name in ("b", "a")])
    assert told(b, gm)[0] == [of(1), of(0)]


def test_what_is_replicated_and_what_is_sharded_are_told_apart():
    """HSDP's gradients go through both reductions; DDP's parameter, of the same form, is gathered by nobody."""
    def outputs(b, shards):
        whole = b.wait(b.gather(shards["sharded"]))
        loss = b.wait(b.reduce(b.call(aten.sum.default, whole)))  # summed over ranks
        mine = b.wait(b.reduce(b.wait(b.scatter(b.call(aten.neg.default, whole)))))
        return [loss, mine, b.wait(b.reduce(b.call(aten.neg.default, shards["replicated"])))]

    b, gm = bare({"replicated": (2, 3), "sharded": (2, 3)}, outputs)
    slots, context = told(b, gm)
    assert slots == [LOSS, of(1), of(0)]
    assert tag_joint(gm, context) == 4
    assert [node.meta[META_KEY][0] for node in gm.graph.nodes if META_KEY in node.meta] == ["fsdp_ag", "fsdp_rs", "hsdp_ar", "ddp_ar"]


def test_an_input_of_a_parameters_form_gets_no_gradient_where_names_are_given():
    b, gm = bare({"x": (2, 3), "w": (2, 3)}, lambda b, shards: [
        b.call(aten.sum.default, b.wait(b.gather(shards["x"]))), b.wait(b.scatter(b.wait(b.gather(shards["w"]))))])
    context = bucketd.context(gm, parameters=[None, "net.w"])
    assert told(b, gm, context)[0] == [LOSS, (SlotKind.PARAMETER_GRADIENT, "net.w")]
    assert told(b, gm)[0] == [LOSS, of(0)], "the first of its form, where nobody names one"


def test_the_backward_begins_behind_the_loss_though_that_is_summed_later():
    def outputs(b, shards):
        whole = b.wait(b.gather(shards["w"]))
        loss = b.call(aten.sum.default, whole)
        gradient = b.wait(b.scatter(b.call(aten.neg.default, whole)))
        return [b.wait(b.reduce(loss)), gradient]

    b, gm = bare({"w": (2, 3)}, outputs)
    describe(gm)
    captured = capture_graph(gm, CaptureContext(), "joint")
    found = {node.name: node.direction for node in captured.raw.nodes if node.direction}
    assert [found[name] for name in ("all_gather_into_tensor_default", "sum_default")] == [Direction.FORWARD] * 2
    assert [found[name] for name in ("neg_default", "reduce_scatter_tensor_default", "all_reduce_default")] == [Direction.BACKWARD] * 3


def test_a_public_name_stays_what_it_is_whatever_is_imported():
    """A module of the package would take the place of a function that is called as it is."""
    for module in pkgutil.iter_modules(bucketd.__path__):
        if module.name not in ("torchtitan",):
            importlib.import_module(f"bucketd.{module.name}")
    modules = [name for name in bucketd.__all__ if isinstance(getattr(bucketd, name), type(bucketd))]
    assert modules == ["inductor"]
