"""A whole step in one graph: traced, given gathers of the backward's own, taken apart, run. In one process; test_joint_training.py has real ranks."""

import copy
import dataclasses
import logging
import pathlib
import sys

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from fx_graphs import Builder, result
from planners import planner

import bucketd
from bucketd import session
from bucketd.errors import GraphRefused
from bucketd.graph import Direction, NodeKind, Tag
from bucketd.reshard import copy_module, forward_first, is_backward
from bucketd.settings import Settings, SettingsArgs
from bucketd.tags import META_KEY

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples"))

import llama  # noqa: E402
import simple_fsdp  # noqa: E402

CONFIG = llama.LlamaConfig(vocab=13, dim=9, layers=1, heads=3, kv_heads=1, head_dim=2, hidden=7, branch_scale=True)
PARAMETERS = 14


@pytest.fixture(scope="module")
def joints():
    """The joint graph of a step with and without resharding, traced for four ranks that are not there."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))
    with FakeTensorMode():
        model = simple_fsdp.shard(llama.Llama(CONFIG), mesh, torch.bfloat16, torch.float32)
        tokens = torch.zeros((2, 7), dtype=torch.int64)
        made = [bucketd.trace_joint(model, (tokens, tokens.clone()), reshard=reshard) for reshard in (False, True)]
    yield made
    dist.destroy_process_group()


def collectives(raw):
    return [(n.collective.tag, n.direction) for n in raw.nodes if n.kind == NodeKind.COLLECTIVE]


def test_a_joint_graph_has_every_collective_of_the_step_with_its_tag_and_direction(joints):
    raw = joints[False].capture().raw
    assert collectives(raw).count((Tag.FSDP_ALL_GATHER, Direction.FORWARD)) == PARAMETERS
    assert collectives(raw).count((Tag.FSDP_REDUCE_SCATTER, Direction.BACKWARD)) == PARAMETERS
    assert len(collectives(raw)) == 2 * PARAMETERS
    names = {n.collective.parameter for n in raw.nodes if n.kind == NodeKind.COLLECTIVE}
    assert names == {name for name, _ in llama.Llama(CONFIG).named_parameters()}


def test_resharding_gives_the_backward_gathers_of_its_own_with_tags_of_their_own(joints):
    joint = joints[True]
    raw = joint.capture().raw
    again = [n for n in raw.nodes if n.kind == NodeKind.COLLECTIVE and n.direction == Direction.BACKWARD
             and n.collective.tag == Tag.FSDP_ALL_GATHER]
    # The backward of an embedding does not read its weight.
    assert {n.collective.parameter for n in again} == {
        name for name, _ in llama.Llama(CONFIG).named_parameters() if name != "tok_embeddings.weight"}
    assert len(again) == PARAMETERS - 1
    for node in joint.module.graph.nodes:
        if META_KEY in node.meta and node.meta[META_KEY][0] == "fsdp_ag":
            wait = next(iter(node.users))
            readers = {is_backward(user) for user in wait.users}
            assert readers <= {is_backward(node)}, f"{node} is read from the other side"
    module = copy_module(joint.module)
    copies = [n for n in module.graph.nodes if META_KEY in n.meta and is_backward(n)]
    copies[0].meta[META_KEY] = ("other", "")
    assert sum(n.meta.get(META_KEY) == ("other", "") for n in module.graph.nodes) == 1


def test_a_gather_of_the_backwards_own_stands_in_front_of_its_first_reader(joints):
    nodes = list(joints[True].module.graph.nodes)
    place = {node: i for i, node in enumerate(nodes)}
    end_of_forward = max(place[n] for n in nodes if n.op == "call_function" and not is_backward(n))
    for node in nodes:
        if node.meta.get(META_KEY, ("",))[0] == "fsdp_ag" and is_backward(node):
            assert place[node] > end_of_forward
            wait = next(iter(node.users))
            between = nodes[place[wait] + 1:min(place[u] for u in wait.users)]
            assert all(META_KEY not in n.meta for n in between), f"{node} is gathered before another one is read"


@pytest.mark.parametrize("reshard", [False, True])
def test_taking_a_joint_graph_apart_keeps_its_collectives_on_their_sides(joints, reshard):
    forward, backward = joints[reshard].split()
    count = lambda gm, part: sum(part in str(n.target) for n in gm.graph.nodes)  # noqa: E731
    assert count(forward, "all_gather") == count(forward, "wait_tensor") == PARAMETERS
    assert count(backward, "reduce_scatter") == PARAMETERS
    assert count(backward, "all_gather") == (PARAMETERS - 1 if reshard else 0)
    saved = {n.name for n in backward.graph.nodes if n.op == "placeholder"}
    assert not any("all_gather" in name for name in saved), "an unfinished collective crosses the border"


def test_a_collective_of_the_backward_that_a_plan_starts_early_is_moved_behind_the_border(joints):
    joint = joints[True]
    module = copy_module(joint.module)
    start = next(n for n in module.graph.nodes if n.meta.get(META_KEY, ("",))[0] == "fsdp_ag" and is_backward(n))
    chain = [start]
    while chain[-1].all_input_nodes[0].op == "call_function":
        chain.append(chain[-1].all_input_nodes[0])
    early = next(n for n in module.graph.nodes if n.op == "call_function")
    for node in reversed(chain):
        early.prepend(node)
    module.graph.lint()
    forward_first(module)
    order = [is_backward(n) for n in module.graph.nodes if n.op == "call_function"]
    assert order == sorted(order) and any(order)
    assert start.name in {n.name for n in joint.split(module)[1].graph.nodes}


class Pair(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 4)

    def forward(self, x):
        return super().forward(x), x


class Counting(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        return super().forward(x).sum()


def test_gradients_of_several_steps_add_up_and_take_the_losss_own_gradient():
    torch.manual_seed(3)
    model, x = Pair(), torch.arange(8.0).view(2, 4)
    step = bucketd.trace_joint(model, (x,), loss_fn=lambda pair: F.mse_loss(*pair)).step()
    losses = [step(x, tangent=scale).item() for scale in (1.0, 0.5)]
    got = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    loss = F.mse_loss(*model(x))
    (loss * 1.5).backward()
    assert losses == [loss.item()] * 2
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad)


def test_a_model_without_collectives_needs_no_planner():
    model, x = Pair(), torch.ones(2, 4)
    step = bucketd.joint_step(model, (x,), loss_fn=lambda pair: F.mse_loss(*pair), address="unix:/nowhere")
    assert step(x).item() > 0 and model.weight.grad is not None
    split = bucketd.joint_step(model, (x,), loss_fn=lambda pair: F.mse_loss(*pair), split=True)
    before = model.weight.grad.clone()
    split(x).backward()
    torch.testing.assert_close(model.weight.grad, 2 * before)


def test_buckets_may_be_modules_of_the_model():
    x, model = torch.ones(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert bucketd.joint_step(model, (x,), loss_fn=torch.sum, mode="manual", buckets=[model[0], "0"])(x).item() is not None
    with pytest.raises(TypeError, match="buckets=Linear"):
        bucketd.joint_step(model, (x,), loss_fn=torch.sum, mode="manual", buckets=[torch.nn.Linear(2, 2)])


def test_what_one_graph_cannot_do_is_refused():
    x = torch.ones(2, 4)
    with pytest.raises(GraphRefused, match="InputMutationAOTOutput.*no forward may write into its buffers"):
        bucketd.trace_joint(Counting(), (x,)).step()
    with pytest.raises(GraphRefused, match="one result, its loss"):
        bucketd.trace_joint(Pair(), (x.requires_grad_(),)).step()
    with pytest.raises(GraphRefused, match="input 0 takes a gradient"):
        bucketd.trace_joint(torch.nn.Linear(4, 1), (x,), loss_fn=torch.sum).step()


@pytest.mark.parametrize("split", [False, True])
def test_an_input_that_takes_a_gradient_where_the_traced_one_took_none_is_refused(split):
    x, model = torch.ones(2, 4), torch.nn.Linear(4, 1)
    step = bucketd.joint_step(model, (x,), loss_fn=torch.sum, split=split)
    step(x)
    with pytest.raises(ValueError, match=r"input 0 is \[2, 4\] of torch.float32 with a gradient; the step was traced for \[2, 4\] of torch.float32"):
        step(torch.relu(x.requires_grad_()))


def test_a_step_taken_apart_gives_inputs_their_gradients():
    x, model = torch.ones(2, 4, requires_grad=True), torch.nn.Linear(4, 1)
    step = bucketd.joint_step(model, (x,), loss_fn=torch.sum, split=True)
    step(x).backward()
    assert torch.equal(x.grad, model.weight.detach().expand(2, 4)) and step(x.detach()).item()


def test_what_one_graph_cannot_do_is_refused_before_a_planner_is_asked_and_may_be_taken_apart(joints):
    from torch.distributed.device_mesh import init_device_mesh

    mesh, x = init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",)), torch.ones(2, 4)
    model = simple_fsdp.shard(Counting(), mesh, torch.float32, torch.float32)
    with pytest.raises(GraphRefused, match="BufferAOTInput.*count.*cannot do: .* but with split=True it may"):
        bucketd.joint_step(model, (x,), address="unix:/nowhere", ranks=[0], deadline=1)
    counting = Counting()
    split = bucketd.joint_step(counting, (x,), split=True)
    split(x).backward()
    assert counting.count == 1 and counting.weight.grad is not None


def test_every_entry_point_says_what_its_arguments_are(joints):
    x = torch.ones(2, 4)
    for entry in (lambda **asked: bucketd.joint_step(Pair(), (x,), **asked), bucketd.backend,
                  lambda **asked: bucketd.plan_pass(joints[0].module, **asked)):
        with pytest.raises(TypeError, match="unknown setting memory_limits; did you mean memory_limit.; known are address, .*tenant"):
            entry(memory_limits="1.05x")
        with pytest.raises(ValueError, match="numerics='fast': expected one of 'eager_order', 'exact', 'free'"):
            entry(numerics="fast")
        with pytest.raises(ValueError, match="mode='blocks': expected one of 'auto', 'transformer_block', "):
            entry(mode="blocks", fallback="unplanned")
        for wrong in (-1, True, 1.5):
            with pytest.raises(ValueError, match=f"prefetch_forward={wrong}: expected a number of buckets, 0 or more"):
                entry(prefetch_forward=wrong, fallback="unplanned")
    with pytest.raises(TypeError, match="fsdp_manual_buckets; did you mean buckets?"):
        bucketd.backend(fsdp_manual_buckets="layers.*")
    for name, wrong in (("compiler", "inductors"), ("partitioner", "least"), ("passes", ["overlap"])):
        with pytest.raises(ValueError, match=f"{name}='.*': expected .*'.*' or a function"):
            bucketd.backend(**{name: wrong})
    # The same words where they are typed and where they are checked.
    assert set(SettingsArgs.__annotations__) == {field.name for field in dataclasses.fields(Settings)}
    with pytest.raises(TypeError, match="takes arguments by name"):
        bucketd.backend("auto")


def test_each_call_of_a_pass_hears_of_its_own_plan(joints, monkeypatch):
    """One session serves all calls that ask alike: a call in the midst of another one, from any thread, is told apart."""
    first, second, inner = [], [], []
    captured = session.capture.capture_graph

    def call_again(gm, *rest):
        if not inner:
            inner.append(True)
            bucketd.plan_pass(joints[0].module, address=one.address, ranks=[0], on_plan=second.append)
        return captured(gm, *rest)

    monkeypatch.setattr(session.capture, "capture_graph", call_again)
    with planner() as one:
        bucketd.plan_pass(joints[0].module, address=one.address, ranks=[0], on_plan=first.append)
    assert [len(first), len(second)] == [1, 1] and first[0].scope != second[0].scope


def test_an_option_that_the_mode_does_not_read_is_said_once_with_the_modes_that_do(joints, caplog):
    caplog.set_level(logging.INFO, "bucketd")
    with planner() as one:
        for joint in joints:
            bucketd.plan_pass(joint.module, address=one.address, ranks=[0], prefetch_forward=3, options={"max_topo_span": 77})
            bucketd.plan_pass(joint.module, address=one.address, ranks=[0], mode="greedy", options={"max_topo_span": 77})
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "bucketd: prefetch_forward=3 is for modes transformer_block, manual, greedy: mode auto only tries those with it",
        "bucketd: max_topo_span=77 is for modes greedy, overlap: mode auto only tries those with it"]


def test_a_step_that_is_taken_apart_cannot_keep_the_executors_order():
    with pytest.raises(ValueError, match='executor=.bucketd.*split=True'):
        bucketd.joint_step(torch.nn.Linear(2, 2), (torch.ones(1, 2),), split=True, executor="bucketd")


@pytest.mark.parametrize("split", [False, True])
def test_inputs_of_another_shape_than_the_traced_one_are_refused(split):
    x = torch.ones(2, 4)
    step = bucketd.joint_step(Pair(), (x,), loss_fn=lambda pair: F.mse_loss(*pair), split=split)
    with pytest.raises(ValueError, match=r"input 0 is \[3, 4\] of torch.float32; the step was traced for \[2, 4\]"):
        step(torch.ones(3, 4))
    with pytest.raises(ValueError, match="input 0 is None"):
        step()


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, scale=2, by=None):
        return (self.linear(x) * scale).sum() * (1 if by is None else by["of"])


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(("given", "said"), [
    ((5,), "input 1 is 5; the step was traced for 2 .what is no tensor is a constant"),
    ((2.0,), "input 1 is 2.0; the step was traced for 2 "),
    ((), "input 1 is None; the step was traced for 2 "),
    ((2, {"of": 1.5}, 3), "input 3 is 3; the step was traced for none "),
    ((2, {"in": 1.5}), "the inputs are .*'in'.*; the step was traced for .*'of'"),
])
def test_numbers_are_constants_of_the_graph_and_others_are_refused(split, given, said):
    x, model = torch.ones(2, 4), Scaled()
    step = bucketd.joint_step(model, (x, 2, {"of": 1.5}), split=split)
    assert step(x, 2, {"of": 1.5}).item() == pytest.approx(model(x, 2, {"of": 1.5}).item())
    with pytest.raises(ValueError, match=said):
        step(x, *given)


@pytest.mark.parametrize("split", [False, True])
def test_a_step_uses_the_tensors_that_the_model_has_now(split):
    x, model = torch.ones(2, 4), Scaled()
    step = bucketd.joint_step(model, (x,), split=split)
    model.load_state_dict({name: 3 * torch.ones_like(p) for name, p in model.state_dict().items()}, assign=True)
    loss = step(x)
    if split:
        loss.backward()
    assert loss.item() == model(x).item() and all(p.grad is not None for p in model.parameters())
    model.linear.bias.requires_grad_(False)
    with pytest.raises(ValueError, match=r"parameter linear.bias is \[4\] of torch.float32 without a gradient; the step was traced for .* with a gra"):
        step(x)
    model.linear.bias = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match=r"parameter linear.bias is \[1\] "):
        step(x)


class Alike(torch.nn.Module):
    """Gradients that are one tensor, and one whose rows are one number."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Parameter(torch.arange(4.0)) for _ in range(3))

    def forward(self, x):
        return ((self.a + self.b) * x).sum() + self.c.sum()


def test_gradients_are_tensors_of_their_own_as_autograd_makes_them():
    x, model, eager = torch.arange(1.0, 5.0), Alike(), Alike()
    step = bucketd.joint_step(model, (x,))
    for _ in range(2):
        step(x)
        eager(x).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.nn.utils.clip_grad_norm_(eager.parameters(), 1.0)
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad) and ours.grad.stride() == theirs.grad.stride()
    assert len({p.grad.data_ptr() for p in model.parameters()}) == 3


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_parameters_with_hooks_are_refused_but_where_autograd_runs_the_backward(register):
    x, model, ran = torch.ones(2, 4), Scaled(), []
    step = bucketd.joint_step(model, (x,))
    getattr(model.linear.weight, register)(lambda _: ran.append(1))
    for refused in (lambda: step(x), lambda: bucketd.joint_step(model, (x,))):
        with pytest.raises(GraphRefused, match="parameter linear.weight has hooks.*split=True does"):
            refused()
    bucketd.joint_step(model, (x,), split=True)(x).backward()
    assert ran == [1]


def test_an_order_of_names_that_the_graph_does_not_know_is_refused_with_what_to_pass():
    """Payloads would be in the graph's order, while the plan says eager's."""
    b = Builder()
    shards = [b.parameter(name, 4, 4) for name in ("layer.first", "layer.second")]
    b.input("x", 16, 16)
    gm = b.output([b.wait(b.gather(shard)) for shard in shards], [result(), result()])
    order = ["layer.second", "layer.first"]
    with pytest.raises(ValueError, match=r"layer\.second.*structure alone.*context=bucketd\.context\("):
        bucketd.plan_pass(gm, kind="fw", param_order=order, ranks=[0], address="unix:/nowhere")
    seen = []
    with planner() as one:
        bucketd.plan_pass(gm, kind="fw", param_order=order, context=b.context, ranks=[0], address=one.address, on_plan=seen.append,
                          mode="manual", buckets=["layer"])
    (bucket,) = seen[0].plan.buckets
    names = [seen[0].normalized.graph.nodes[member].collective.parameter for member in bucket.members]
    assert names == order


def test_a_graph_that_says_nothing_of_its_parameters_is_told_of(joints, caplog):
    gm = copy.deepcopy(joints[0].module)
    for node in gm.graph.nodes:
        node.meta.pop("desc", None)
        node.meta.pop("bucketd", None)
    caplog.set_level(logging.WARNING, "bucketd")
    with planner() as one:
        bucketd.plan_pass(gm, kind="bw", address=one.address, ranks=[0])
        bucketd.plan_pass(gm, address=one.address, ranks=[0])  # as a joint graph its structure does
    (said,) = [record.message for record in caplog.records]
    assert "none shares a bucket" in said and "meta['desc']" in said


def test_entries_of_buckets_are_names_or_modules_or_lists_of_them():
    model = torch.nn.ModuleDict({"norm": torch.nn.Linear(2, 2), "layers": torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(2)])})
    asked = [model["layers"][0], "layers.1", [model["norm"], "output"]]
    made = bucketd.backend(model=model, mode="manual", buckets=asked, address="unix:/nowhere")
    assert made.session.settings.buckets == "layers.0,layers.1,norm+output"
    assert Settings.of(buckets=["a", ["b", "c"]]) == Settings.of(buckets="a,b+c")
    for wrong in (dict(buckets=asked), dict(buckets=[torch.nn.Linear(1, 1)], model=model)):
        with pytest.raises(TypeError, match="buckets=Linear: expected names or modules of model="):
            bucketd.backend(mode="manual", address="unix:/nowhere", **wrong)
