"""Nodes that PyTorch leaves without a value: random operators that a checkpoint runs again, operators that return nothing."""

import operator

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from fx_graphs import aten
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint

from bucketd.capture import capture_graph
from bucketd.graph import COMPUTE, ORDERED, VIEW, GraphError, NodeKind
from bucketd.normalize import normalize
from bucketd.step_context import CaptureContext


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)

    def attention(self, x):
        q, k, v = (part[None] for part in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.25, is_causal=True)[0]

    def forward(self, x):
        return checkpoint(self.attention, x, use_reentrant=False)


def graphs_of(model, x):
    """(forward, backward) as AOTAutograd hands them over."""
    seen = []

    def compiler(gm, _):
        seen.append(gm)
        return make_boxed_func(gm.forward)

    torch.compile(model, backend=aot_autograd(fw_compiler=compiler, bw_compiler=compiler))(x).sum().backward()
    return seen


def test_a_checkpoint_with_dropout_in_its_attention_is_captured():
    forward, backward = graphs_of(Checkpointed(), torch.randn(2, 8, 32, requires_grad=True))
    raw = capture_graph(forward, CaptureContext(), "fw").raw
    saves = [n for n in raw.nodes if n.op == "higher_order.run_and_save_rng_state"]
    assert saves and all(n.flags & ORDERED for n in saves)
    assert [t.shape for t in saves[0].outputs][0] == (torch.get_rng_state().numel(),)
    assert len(saves[0].outputs) == 3  # the state, what dropout leaves, its mask
    getitems = [n for n in raw.nodes if n.inputs == [raw.nodes.index(saves[0])]]
    assert getitems and all(n.kind == NodeKind.CALL and n.flags & VIEW and n.alias_of == n.inputs for n in getitems)

    raw = capture_graph(backward, CaptureContext(), "bw").raw
    runs = [n for n in raw.nodes if n.op == "higher_order.run_with_rng_state"]
    assert runs and all(n.flags & ORDERED for n in runs)
    state = raw.nodes[runs[0].inputs[0]]
    assert state.kind == NodeKind.PLACEHOLDER and state.outputs[0].shape == (torch.get_rng_state().numel(),)
    assert normalize(raw).graph.nodes


def inputs_of(*shapes):
    graph = torch.fx.Graph()
    inputs = []
    for position, shape in enumerate(shapes):
        inputs.append(graph.placeholder(f"x{position}"))
        inputs[-1].meta["val"] = torch.empty(shape, device="meta")
    return graph, inputs


def test_what_a_wrapped_operator_computes_is_counted():
    graph, (a, b, state) = inputs_of((4, 8), (8, 16), (5056,))
    product = graph.call_function(torch.ops.higher_order.run_with_rng_state, (state, aten.mm.default, a, b))
    product.meta["val"] = torch.empty(4, 16, device="meta")
    graph.output((product,))
    node = capture_graph(torch.fx.GraphModule({}, graph), CaptureContext(), "fw").raw.nodes[3]
    assert node.flags & COMPUTE and node.flops == 2 * 4 * 8 * 16


def test_what_a_gpus_generator_is_given_to_has_the_operators_own_result():
    """As the partitioner leaves it where CUDA graphs are to know the generator: without a value, and read whole or by parts."""
    graph, (a, b, state) = inputs_of((4, 8), (8, 16), ())
    state.meta["val"] = torch.Generator()
    wrapped = torch.ops.higher_order.graphsafe_run_with_rng_state
    product = graph.call_function(wrapped, (aten.mm.default, a, b), {"rng_state": state})
    both = graph.call_function(wrapped, (aten.native_dropout.default, product, 0.5, True), {"rng_state": state})
    parts = [graph.call_function(operator.getitem, (both, k)) for k in range(2)]
    for part, dtype in zip(parts, (torch.float32, torch.bool)):
        part.meta["val"] = torch.empty(4, 16, dtype=dtype, device="meta")
    graph.output(tuple(parts))
    nodes = capture_graph(torch.fx.GraphModule({}, graph), CaptureContext(), "fw").raw.nodes
    assert nodes[3].op == "higher_order.graphsafe_run_with_rng_state" and nodes[3].flags & COMPUTE and nodes[3].flops == 2 * 4 * 8 * 16
    assert [t.shape for t in nodes[3].outputs] == [(4, 16)] and len(nodes[4].outputs) == 2
    assert all(node.flags & ORDERED for node in nodes[3:5])


@pytest.mark.parametrize(("dropout", "ordered"), [(0.0, False), (0.25, True)])
def test_an_operator_that_torch_says_draws_keeps_its_place_unless_its_dropout_is_nothing(dropout, ordered):
    graph, (q,) = inputs_of((1, 2, 8, 16))
    attention = graph.call_function(aten._scaled_dot_product_flash_attention.default, (q, q, q, dropout))
    attention.meta["val"] = tuple(torch.empty(1, 2, 8, 16, device="meta") for _ in range(9))
    gamma = graph.call_function(aten._standard_gamma.default, (q,))
    gamma.meta["val"] = torch.empty(1, 2, 8, 16, device="meta")
    graph.output((attention, gamma))
    nodes = capture_graph(torch.fx.GraphModule({}, graph), CaptureContext(), "fw").raw.nodes
    assert bool(nodes[1].flags & ORDERED) == ordered and nodes[2].flags & ORDERED


def test_an_operator_that_returns_nothing_has_no_outputs_and_keeps_its_place():
    graph, (x,) = inputs_of(())
    graph.call_function(aten._assert_async.msg, (x, "why"))
    graph.call_function(aten._foreach_add_.Scalar, ([x], 1))
    graph.output((x,))
    nodes = capture_graph(torch.fx.GraphModule({}, graph), CaptureContext(), "fw").raw.nodes
    assert nodes[1].outputs == [] and nodes[1].flags & ORDERED
    assert nodes[2].outputs == [] and nodes[2].mutates == [0] and not nodes[2].flags & ORDERED


def test_a_value_that_is_missing_for_no_reason_is_named():
    graph, (x,) = inputs_of((4,))
    graph.call_function(aten.relu.default, (x,))
    graph.output((x,))
    with pytest.raises(GraphError, match=r"node relu_default has no value.*aten.relu.default.*set meta\['val'\]"):
        capture_graph(torch.fx.GraphModule({}, graph), CaptureContext(), "fw")
