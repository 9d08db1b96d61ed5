"""The order of launches and waits in Inductor's code: one process, four ranks made up, kernels that nobody compiles."""

import operator
import pathlib
import sys
import types

import pytest
import torch
import torch.distributed as dist
from planners import planner
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.compile_fx import compile_fx_inner
from torch.distributed.device_mesh import init_device_mesh
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.distributed.fake_pg import FakeStore

import bucketd
from bucketd import inductor
from bucketd.errors import InductorOrderError
from bucketd.launch_order import KeepOrder, Launch, Wait, check, of_code, of_graph

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples"))

import simple_fsdp  # noqa: E402
from sharded_model import Model  # noqa: E402

GATHER = "torch.ops._c10d_functional.all_gather_into_tensor.default"
WAIT = "torch.ops._c10d_functional.wait_tensor.default"

CODE = f"""
def call(self, args):
    buf1 = {GATHER}(buf0, 4, '0')
    assert_size_stride(buf1, (16, 8), (8, 1), '{GATHER}')
    buf7 = {GATHER}(reinterpret_tensor(buf6, (70, ), (1, ), 0), 4, '0')
    assert_size_stride(buf7, (280, ), (1, ), '{GATHER}')
    # Topologically Sorted Source Nodes: [whole], Original ATen: [_c10d_functional.wait_tensor]
    {WAIT}(buf1)
    del buf0
    torch.ops._c10d_functional.all_reduce_.default(buf9, 'sum', '1')
    buf10 = buf9; del buf9  # reuse
    {WAIT}(buf7)
    {WAIT}(buf10)
    buf12 = torch.ops._c10d_functional.reduce_scatter_tensor_coalesced.default([buf11, buf2], 'sum', 4, '0')
    buf13 = buf12[0]
    buf14 = buf12[1]
    {WAIT}(reinterpret_tensor(buf14, (2, ), (1, ), 0))
    {WAIT}(buf13)
"""
GATHERED = [Launch("all_gather_into_tensor", "4, '0'", (16, 8)), Launch("all_gather_into_tensor", "4, '0'", (280,))]
EVENTS = [*GATHERED, Wait(0), Launch("all_reduce", "'sum', '1'", None), Wait(1), Wait(2),
          Launch("reduce_scatter_tensor_coalesced", "'sum', 4, '0'", None), Wait(3), Wait(3)]


def test_launches_and_waits_are_read_from_code():
    assert of_code(CODE) == EVENTS
    assert check(EVENTS, CODE) == ""


def test_sizes_of_the_step_are_their_symbols_in_graph_and_code():
    """Where a node's own name stood, no exchange of tokens was found in the code."""
    env, graph = ShapeEnv(), torch.fx.Graph()
    tokens, *sizes = (graph.placeholder(name) for name in ("tokens", "there", "here"))
    for node in sizes:
        node.meta["val"] = env.create_unbacked_symint()
    kept = graph.call_function(operator.add, (sizes[1], 1))
    kept.meta["val"] = sizes[1].meta["val"] + 1
    graph.call_function(torch.ops._c10d_functional.all_to_all_single.default, (tokens, [sizes[0], kept], [2, sizes[1]], "0"))
    planned = of_graph(torch.fx.GraphModule({}, graph))
    code = "def call(self, args):\n    buf3 = torch.ops._c10d_functional.all_to_all_single.default(buf2, [{}, 1 + u1], [2, u1], '0')"
    assert check(planned, code.format("u0")) == ""
    with pytest.raises(InductorOrderError, match=r"launch 0 is all_to_all_single\(\[u1, "):
        check(planned, code.format("u1"))


def test_partitions_stand_where_they_are_called():
    code = f"""
def partition_0(args):
    buf1 = {GATHER}(buf0, 4, '0')
    {WAIT}(buf1)
def partition_1(args):
    buf2 = {GATHER}(buf1, 2, '0')
    {WAIT}(buf2)
class Runner:
    def call(self, args):
        (buf2,) = self.partitions[1](partition1_args)
        (buf3,) = self.partitions[0](partition0_args)
"""
    assert of_code(code) == [Launch("all_gather_into_tensor", "2, '0'", None), Wait(0),
                             Launch("all_gather_into_tensor", "4, '0'", None), Wait(1)]


@pytest.mark.parametrize("planned, told", [
    ([GATHERED[1], GATHERED[0], *EVENTS[2:]], r"launch 0 is .*\[16, 8\] in Inductor's code, .*\[280\] in the plan"),
    (EVENTS[:6], "launch 3 is reduce_scatter_tensor_coalesced.* nothing in the plan"),
    ([*EVENTS, GATHERED[0]], "launch 4 is nothing in Inductor's code"),
])
def test_other_launches_are_an_error(planned, told):
    with pytest.raises(InductorOrderError, match=told):
        check(planned, CODE)


def test_code_that_nobody_can_read_is_an_error():
    with pytest.raises(InductorOrderError, match="no launches that can be read"):
        check(EVENTS, "void inductor_entry_impl() { aoti_torch_proxy_executor_call_function(0); }")


def test_other_waits_are_told():
    planned = [*EVENTS[:2], Wait(1), *EVENTS[3:4], Wait(0), *EVENTS[5:]]
    assert check(planned, CODE) == "the plan is L0 L1 w1 L2 w0 w2 L3 w3, Inductor's code L0 L1 w0 L2 w1 w2 L3 w3"


def test_second_waits_and_those_for_what_is_no_launchs_may_be_anywhere():
    again = CODE.replace("    del buf0\n", f"    del buf0\n    {WAIT}(arg0_1)\n    {WAIT}(reinterpret_tensor(buf1, (8, 16), (1, 8), 0))\n")
    assert of_code(again) != EVENTS and check(EVENTS, again) == ""
    assert check([*EVENTS, Wait(0)], CODE) == ""
    assert "Inductor's code L0 L1 w0 L2 w1 w2 L3" in check(EVENTS, CODE[:CODE.rindex(f"    {WAIT}(reinterpret")])


@pytest.fixture(scope="module")
def address():
    with planner() as one:
        yield one.address


@pytest.fixture
def mesh(monkeypatch):
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_: lambda *_: None)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    with config.patch(force_disable_caches=True):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("fsdp",))
    torch._dynamo.reset()
    dist.destroy_process_group()


def compiled(mesh, address, mode, **options):
    """[(events of the planned graph, events of its code)] of forward and backward."""
    graphs, codes = [], []

    def inner(gm, inputs, **more):
        codes.append(of_code((code := compile_fx_inner(gm, inputs, **more)).source_code))
        return code

    backend = bucketd.backend(compiler="inductor", mode=mode, address=address, ranks=[0],
                              on_plan=lambda planned: graphs.append(of_graph(planned.module)), **options)
    model = simple_fsdp.shard(Model(6, 7), mesh, torch.bfloat16, torch.float32)
    step = torch.compile(model, backend=lambda gm, inputs: backend(gm, inputs, inner_compile=inner))
    step(torch.zeros(2, 5, dtype=torch.long)).backward()
    return list(zip(graphs, codes, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["transformer_block", *(pytest.param(mode, marks=pytest.mark.full)
                                                         for mode in ("manual", "auto", "greedy", "overlap", "none"))])
def test_the_code_keeps_every_modes_order(mesh, address, mode, caplog):
    parts = compiled(mesh, address, mode, **({"buckets": "embedding+blocks.0,blocks.1+head"} if mode == "manual" else {}))
    assert len(parts) == 2
    for planned, code in parts:
        assert [str(event) for event in code] == [str(event) for event in planned]
    assert "waits in another order" not in caplog.text


@pytest.mark.slow
def test_without_it_fusion_drags_a_wait_before_a_launch_and_that_is_told(mesh, address, monkeypatch, caplog):
    monkeypatch.setattr(KeepOrder, "__call__", lambda self, nodes: nodes)
    (planned, code), _ = compiled(mesh, address, "transformer_block")
    assert [type(event) for event in code] != [type(event) for event in planned]
    assert "the code waits in another order than the plan" in caplog.text


def test_code_in_cpp_is_refused_before_any_is_made(mesh, address):
    with config.patch(cpp_wrapper=True), pytest.raises(BackendCompilerFailed, match="InductorOrderError: cpp_wrapper and fx_wrapper write code"):
        compiled(mesh, address, "transformer_block")


def test_of_what_a_backward_is_given_inductor_may_write_into_what_has_its_storage_to_itself():
    first, alone = torch.empty(4, device="meta"), torch.empty(4, device="meta")
    graph = torch.fx.Graph()
    for name, value in dict(first=first, again=first.view(2, 2), alone=alone).items():
        graph.placeholder(name).meta["val"] = value
    graph.output(())
    tracing = torch._guards.TracingContext(None)
    tracing.fw_metadata = types.SimpleNamespace(bw_donated_idxs=[0, 1, 2])
    with torch._guards.tracing(tracing):
        with inductor._giving_alone(torch.fx.GraphModule({}, graph)):
            assert tracing.fw_metadata.bw_donated_idxs == [2]
    assert tracing.fw_metadata.bw_donated_idxs == [0, 1, 2]


def test_settings_that_would_reorder_a_plan_are_told_once(monkeypatch, caplog):
    monkeypatch.setattr(inductor, "_told", set())
    with config.patch(reorder_for_compute_comm_overlap=True):
        given = inductor._set_by_hand()
        inductor._tell(given)
        inductor._tell(given)
    assert caplog.messages == ["bucketd: Inductor's reorder_for_compute_comm_overlap=True is False where a graph runs by a plan"]
