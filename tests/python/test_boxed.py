"""A graph as a function computes what the module computes, lets go of its values as early, and shows its lines in tracebacks."""

import gc
import operator
import traceback
import weakref

import pytest
import torch
from torch import fx

import bucketd.boxed
from bucketd.boxed import boxed

aten = torch.ops.aten


def module(graph, **attributes):
    root = torch.nn.Module()
    for name, value in attributes.items():
        root.register_buffer(name, value)
    return fx.GraphModule(root, graph)


def test_every_kind_of_argument_means_what_it_means_to_the_module():
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("run")
    held = graph.get_attr("held")
    size = graph.call_function(aten.sym_size.int, (x, 0))
    whole = graph.call_function(aten.cat.default, ([x, y, held],), {"dim": 0})
    wide = graph.call_function(aten.view.default, (whole, [size, -1]))
    half = graph.call_function(aten.to.dtype, (wide, torch.float64))
    parts = graph.call_function(aten.split_with_sizes.default, (half, [1, 2], 0))
    first = graph.call_function(aten.mul.Scalar, (graph.call_function(torch._C._VariableFunctions.neg, (held,)), 0.5))
    second = graph.call_function(operator.getitem, (parts, 1))
    cut = graph.call_function(operator.getitem, (second, (slice(None, size, None), slice(0, 2))))
    drawn = graph.call_function(aten.full.default, ([2, 2], float("inf")), {"dtype": torch.float32, "device": torch.device("cpu")})
    graph.call_function(aten.abs.default, (drawn,))  # nobody reads it
    graph.output((cut, [first, None], {"drawn": drawn}))
    gm = module(graph, held=torch.arange(3.0))
    inputs = [torch.arange(3.0), torch.arange(3.0) * 10]
    expected = gm(*inputs)
    given = list(inputs)
    found = boxed(gm)(given)
    assert given == []
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert found[0].dtype == torch.float64 and found[0].tolist() == [[0.0, 10.0], [0.0, 1.0]]


def test_a_keyword_may_be_a_word_of_python():
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(aten.uniform_.default, (x,), {"from": 3.0, "to": 4.0}))
    gm = fx.GraphModule(torch.nn.Module(), fx.Graph())
    gm.graph._codegen, gm._graph = fx.graph.CodeGen(), graph
    assert 3 <= float(boxed(gm)([torch.zeros(1)])) < 4


def test_a_value_dies_with_its_last_reader():
    alive = []

    def watch(x, *others):
        made = x + 1
        alive.append([ref() is not None for ref in refs])
        refs.append(weakref.ref(made))
        return made

    graph = fx.Graph()
    x, _ = graph.placeholder("x"), graph.placeholder("unread")
    a = graph.call_function(watch, (x,))
    b = graph.call_function(watch, (a,))
    c = graph.call_function(watch, (b, a))
    graph.output(graph.call_function(watch, (c,)))
    inputs = [torch.zeros(2), torch.zeros(3)]
    refs = [weakref.ref(inputs[0]), weakref.ref(inputs[1])]
    result = boxed(fx.GraphModule(torch.nn.Module(), graph))(inputs)
    assert result.tolist() == [4, 4]
    # x, unread, then each value made: behind its last reader it is gone.
    assert alive == [[True, False], [False, False, True], [False, False, True, True], [False, False, False, False, True]]


def test_names_of_nodes_may_be_those_that_the_function_uses():
    graph = fx.Graph()
    names = ["run", "inputs", "module", "constant_3", "aten_add_Tensor"]
    nodes = [graph.placeholder(name) for name in names]
    whole = nodes[0]
    for node in nodes[1:]:
        whole = graph.call_function(aten.add.Tensor, (whole, node))
    graph.output(graph.call_function(aten.to.dtype, (whole, torch.float64)))
    found = boxed(fx.GraphModule(torch.nn.Module(), graph))([torch.tensor(10.0**k) for k in range(5)])
    assert found.item() == 11111 and found.dtype == torch.float64


def test_a_failure_shows_the_line_and_the_node():
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(aten.mm.default, (x, x)))
    with pytest.raises(RuntimeError) as failed:
        boxed(fx.GraphModule(torch.nn.Module(), graph))([torch.zeros(2, 3)])
    assert "mm_default = aten_mm_default(x, x)" in "".join(traceback.format_exception(failed.value))


def test_what_is_no_aten_level_graph_is_refused_by_its_node():
    graph = fx.Graph()
    graph.output(graph.call_method("relu", (graph.placeholder("x"),)))
    with pytest.raises(ValueError, match="node relu is a call_method"):
        boxed(fx.GraphModule(torch.nn.Module(), graph))


def test_no_garbage_is_collected_while_code_is_written(monkeypatch):
    graph = fx.Graph()
    graph.output(graph.call_function(aten.relu.default, (graph.placeholder("x"),)))
    seen = []
    monkeypatch.setattr(bucketd.boxed, "_Code", lambda gm, make=bucketd.boxed._Code: seen.append(gc.isenabled()) or make(gm))
    boxed(module(graph))
    assert seen == [False] and gc.isenabled()
    gc.disable()
    try:
        boxed(module(graph))
        assert not gc.isenabled(), "it was off before"
    finally:
        gc.enable()
