"""The promises about bits, on real ranks: gloo processes train small models, with values whose sums depend on the order
of adding, over every parallelism, mode and reduce dtype. What is compared is every bit of every rank's shards, of the
weights and of the gradients of each step.

Without `-m full` a representative of each promise is trained; with it, the whole product. build/proof.txt then says what
each run was equal to.

Two ranks have one sum, whatever its order. Where the mesh is 2x2 a wrong layout still shows, a wrong order does not: that
is what the meshes of six ranks are for.
"""

from __future__ import annotations

import itertools
import pathlib
import sys

import pytest
from planners import planner

sys.path.insert(0, str(pathlib.Path(__file__).parent / "training"))

import proof as training_proof  # noqa: E402
from cells import EAGER_UNITS, Cell  # noqa: E402

from bucketd.client import PlannerClient  # noqa: E402

pytestmark = pytest.mark.slow

DTYPES = ("bf16", "fp32")
SHARDED = ("fsdp", "fsdp+tp")
REPLICATED = ("hsdp", "ddp")
# By mode what else it is asked for.
MODES = {
    "none": (),
    "manual": (("buckets", EAGER_UNITS),),
    "transformer_block": (),
    "greedy": (),
    "overlap": (),
    "auto": (),
}
OF_EAGERS_UNITS = ("transformer_block", "manual")
MERGING = tuple(mode for mode in MODES if mode not in ("none", "auto"))  # auto merges where that is faster
ACROSS_UNITS = (("buckets", "tok_embeddings+layers.0,layers.1+norm+output"),)
APART = (("bucket_all_reduce", "off"),)
# Of these ranks: by them copies are cheap, and auto packs.
COSTS = (("cost_profile", "cpu_loopback"),)
EXECUTOR = (("executor", "bucketd"),)


def planned(parallelism: str, mode: str, numerics: str, dtype: str = "bf16", more=(), options=None, **changes) -> Cell:
    options = (*(MODES[mode] if options is None else options), *more)
    return Cell(parallelism, "planned", dtype, mode, numerics, options, **changes)


def product(parallelisms, modes, numerics, **more) -> list[Cell]:
    return [planned(parallelism, mode, numerics, dtype, **more)
            for parallelism, mode, dtype in itertools.product(parallelisms, modes, DTYPES)]


def auto(parallelism: str, numerics: str, dtype: str = "bf16", **changes) -> Cell:
    return planned(parallelism, "auto", numerics, dtype, more=COSTS, **changes)


def llamas(numerics: str, model: str = "", **more) -> list[Cell]:
    return [planned("fsdp", "transformer_block", numerics, dtype, model=each, steps=25, **more)
            for each in ("llama even", "llama odd") for dtype in DTYPES if model in each]


def unplanned(cell: Cell) -> Cell:
    return cell.like("unplanned")


def eager(cell: Cell) -> Cell:
    return cell.like("eager")


def by_hand(cell: Cell) -> Cell:
    return cell.like("by hand", mode=cell.mode, numerics=cell.numerics, options=cell.options)


def compared(with_what, fast=(), full=()):
    """Each cell, and the one that it is compared with; those of `full` stand behind a mark of that name."""
    fast = list(fast)
    return pytest.mark.parametrize(("cell", "reference"), [
        pytest.param(cell, with_what(cell), id=str(cell), marks=() if cell in fast else pytest.mark.full)
        for cell in dict.fromkeys([*fast, *full])])


@pytest.fixture(scope="module")
def offered():
    """The planner's modes."""
    with planner() as running:
        return PlannerClient(running.address).capabilities().modes


@pytest.fixture(scope="module")
def proof(request):
    """Trains what the selected tests name, at the first question."""
    named = []
    for item in request.session.items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        for cell in values:
            if isinstance(cell, Cell):
                if cell.run == "by hand" and cell.mode:  # reduces in that plan's buffers
                    named.append(cell.like("planned", mode=cell.mode, numerics=cell.numerics, options=cell.options))
                named.append(cell)
    return training_proof.Proof(named)


def test_every_mode_of_the_planner_is_trained(offered):
    assert set(offered) == set(MODES)


# -- sharded parameters: eager's sums, or the unplanned graph's


@compared(
    eager,
    fast=[planned("fsdp", "transformer_block", "eager_order", steps=25), planned("fsdp+tp", "transformer_block", "eager_order")],
    full=[*product((*SHARDED, "fsdp+tp 3x2"), OF_EAGERS_UNITS, "eager_order"), *llamas("eager_order")])
def test_with_eagers_units_as_buckets_the_bits_are_those_of_eager_fsdp2(proof, cell, reference):
    assert all(bucket["packed"] for bucket in proof.buckets(cell, "reduce_scatter"))
    assert proof.bits(cell) == proof.bits(reference)


@compared(
    unplanned,
    fast=[*(planned("fsdp", mode, "exact") for mode in ("transformer_block", "greedy", "overlap")),
          planned("fsdp+tp", "transformer_block", "exact"),
          *(auto(parallelism, "exact") for parallelism in (*SHARDED, "ddp")), auto("fsdp", "exact", "fp32")],
    full=[*product((*SHARDED, *REPLICATED, "fsdp+tp 3x2", "hsdp 3x2"), MODES, "exact"),
          *product((*SHARDED, *REPLICATED, "fsdp+tp 3x2", "hsdp 3x2"), ["auto"], "exact", more=COSTS),
          *product((*SHARDED, "fsdp+tp 3x2"), ["manual"], "exact", options=ACROSS_UNITS), *llamas("exact")])
def test_an_exact_plan_keeps_the_bits_of_the_unplanned_graph(proof, cell, reference):
    assert proof.bits(cell) == proof.bits(reference)


@compared(
    unplanned,
    fast=[planned("fsdp", "transformer_block", "exact", more=EXECUTOR), planned("hsdp", "transformer_block", "exact", more=EXECUTOR),
          planned("fsdp", "transformer_block", "exact", more=EXECUTOR, model="llama even")],
    full=[auto("fsdp", "exact", "fp32", options=EXECUTOR),
          *product((*SHARDED, *REPLICATED, "fsdp+tp 3x2", "hsdp 3x2"), MODES, "exact", more=EXECUTOR), *llamas("exact", more=EXECUTOR)])
def test_buckets_that_our_executor_runs_keep_them_too(proof, cell, reference):
    # But for sums of parts that gloo cuts otherwise.
    for plan in proof.plans(cell):
        assert plan["run by"].startswith("bucketd") and (plan["part"] == "bw" or plan["run by"] == "bucketd")
    if cell.model == "llama even":
        assert {plan["run by"] for plan in proof.plans(cell)} == {"bucketd"}
    assert proof.bits(cell) == proof.bits(reference)


def packed(cell: Cell) -> Cell:
    return cell.like("planned", mode=cell.mode, numerics="eager_order", options=cell.options)


@compared(
    packed,
    fast=[planned("fsdp", "transformer_block", "exact"), auto("fsdp", "exact")],
    # Not 3x2 in fp32: its odd counts would happen to keep their bits in a packed buffer too.
    full=[*(cell for cell in product(("fsdp", "fsdp+tp 3x2"), OF_EAGERS_UNITS, "exact")
            if (cell.parallelism, cell.dtype) != ("fsdp+tp 3x2", "fp32")),
          *llamas("exact", "odd")])
def test_exact_groups_what_would_change_its_bits_if_it_were_packed(proof, cell, reference):
    # Mode auto may find some that keep their bits in a packed buffer, and packs them; what is exact is held by the test above.
    some = any if cell.mode == "auto" else all
    assert some(not bucket["packed"] for bucket in proof.buckets(cell, "reduce_scatter"))
    assert all(bucket["packed"] for bucket in proof.buckets(reference, "reduce_scatter"))
    assert proof.bits(cell)[1] != proof.bits(reference)[1]


@compared(unplanned, full=llamas("exact", "even"))
def test_exact_packs_where_packing_keeps_the_bits(proof, cell, reference):
    assert all(bucket["packed"] for bucket in proof.buckets(cell, "reduce_scatter"))


@compared(
    eager,
    # Not the small model in fp32: its blocks have even counts a rank, whose sums do not hang on the order of payloads.
    full=[*(cell for cell in product(("fsdp", "fsdp+tp 3x2"), OF_EAGERS_UNITS, "eager_order", twist="payloads reversed")
            if cell.dtype == "bf16"),
          *llamas("eager_order", "odd", twist="payloads reversed")])
def test_payloads_in_another_order_give_other_bits(proof, cell, reference):
    assert proof.bits(cell)[1] != proof.bits(reference)[1]


@compared(
    eager,
    fast=[Cell("fsdp", "eager", "bf16", twist="ranks shifted")],
    full=[*(Cell(parallelism, "eager", dtype, twist="ranks shifted")
            for parallelism in ("fsdp", "fsdp+tp 3x2", "hsdp", "hsdp 3x2") for dtype in DTYPES),
          *(cell.like("eager", twist="ranks shifted") for cell in llamas(""))])
def test_the_sums_depend_on_the_order_of_ranks(proof, cell, reference):
    # The same addends, handed to the ranks in another order. Were these equal, every other comparison here would be too,
    # whatever a plan does.
    assert proof.bits(cell)[1] != proof.bits(reference)[1]


# -- what a plan says of its bits is what holds


def said(proof, cell: Cell, whose: str) -> bool:
    return all(plan["bits"] in (whose, "both") for plan in proof.plans(cell))


ODD = [cell for numerics in ("eager_order", "exact", "free") for cell in product(("fsdp",), MODES, numerics) if cell.dtype == "bf16"]
ODD += [auto("fsdp", numerics) for numerics in ("eager_order", "exact", "free")]
ODD += product(("fsdp",), ["manual"], "eager_order", options=ACROSS_UNITS)[:1]
OTHERS = [cell for parallelism in (*SHARDED, "fsdp+tp 3x2", "hsdp", "hsdp 3x2") for numerics in ("eager_order", "exact", "free")
          for cell in product((parallelism,), MODES, numerics) if cell not in ODD] + llamas("eager_order") + llamas("exact")
SAID_FAST = [planned("fsdp", mode, "eager_order") for mode in ("transformer_block", "greedy", "overlap")]
SAID_FAST += [planned("fsdp", "transformer_block", "exact"), auto("fsdp", "eager_order"), auto("fsdp", "exact")]


@compared(eager, fast=SAID_FAST, full=ODD)
def test_of_odd_shapes_a_plan_says_eagers_bits_where_they_hold_and_nowhere_else(proof, cell, reference):
    assert said(proof, cell, "eager") == (proof.bits(cell) == proof.bits(reference))


@compared(unplanned, fast=SAID_FAST, full=ODD)
def test_of_odd_shapes_a_plan_says_the_unplanned_bits_where_they_hold_and_nowhere_else(proof, cell, reference):
    assert said(proof, cell, "unplanned") == (proof.bits(cell) == proof.bits(reference))


@compared(eager, fast=[planned("fsdp+tp", "transformer_block", "eager_order"), auto("hsdp", "free")], full=OTHERS)
def test_no_plan_says_eagers_bits_where_they_do_not_hold(proof, cell, reference):
    assert not said(proof, cell, "eager") or proof.bits(cell) == proof.bits(reference)


@compared(
    unplanned,
    fast=[planned("fsdp+tp", "transformer_block", "eager_order"), auto("hsdp", "free"), auto("ddp", "free")],
    full=[*OTHERS, *(cell for numerics in ("eager_order", "exact", "free") for cell in product(("ddp",), MODES, numerics))])
def test_no_plan_says_the_unplanned_bits_where_they_do_not_hold(proof, cell, reference):
    assert not said(proof, cell, "unplanned") or proof.bits(cell) == proof.bits(reference)


# -- replicated parameters: merged as eager DDP's reducer merges, so other sums than the unplanned graph's, but where all-reduces
#    stay apart or only two ranks are added


@compared(
    unplanned,
    fast=[*(planned(parallelism, "transformer_block", "eager_order", more=APART) for parallelism in REPLICATED),
          *(planned(parallelism, "auto", "eager_order", more=(*COSTS, *APART)) for parallelism in REPLICATED)],
    full=product((*REPLICATED, "hsdp 3x2"), MODES, "eager_order", more=APART))
def test_t4_8_switched_off_all_reduces_stay_apart_and_keep_their_bits(proof, cell, reference):
    assert proof.bits(cell) == proof.bits(reference)
    assert proof.launched(cell)["all_reduce"] == proof.launched(reference)["all_reduce"] > 0
    if cell.parallelism != "ddp" and cell.mode in MERGING:
        assert proof.launched(cell)["reduce_scatter"] < proof.launched(reference)["reduce_scatter"]


@compared(
    by_hand,
    fast=[planned("ddp", "transformer_block", "eager_order"), planned("hsdp", "transformer_block", "free")],
    full=[*product((*REPLICATED, "hsdp 3x2"), MERGING, "free"),
          *product((*REPLICATED, "hsdp 3x2"), ["transformer_block"], "eager_order")])
def test_merged_all_reduces_have_the_bits_of_the_same_flat_buffers_reduced_by_hand(proof, cell, reference):
    buckets = proof.buckets(cell, "all_reduce")
    assert buckets and all(bucket["parameters"] and all(bucket["parameters"]) for bucket in buckets)
    assert proof.bits(cell) == proof.bits(reference)


@compared(
    unplanned,
    fast=[Cell(parallelism, "by hand", "bf16") for parallelism in REPLICATED],
    full=[Cell(parallelism, "by hand", dtype) for parallelism in (*REPLICATED, "hsdp 3x2") for dtype in DTYPES])
def test_reduced_by_hand_one_by_one_the_bits_are_those_of_the_unplanned_graph(proof, cell, reference):
    assert proof.bits(cell) == proof.bits(reference)


@compared(
    unplanned,
    fast=[planned("ddp", "transformer_block", "eager_order"), auto("ddp", "eager_order")],
    full=[*product(("ddp", "hsdp 3x2"), OF_EAGERS_UNITS, "free"), *product(("hsdp 3x2",), OF_EAGERS_UNITS, "eager_order")])
def test_by_default_all_reduces_merge_which_changes_bits_and_is_said(proof, cell, reference):
    assert proof.bits(cell)[1] != proof.bits(reference)[1]
    assert proof.launched(cell)["all_reduce"] < proof.launched(reference)["all_reduce"] / 2
    assert any("all-reduce-merged" in plan["diagnostics"] for plan in proof.plans(cell))


@compared(
    unplanned,
    fast=[planned("hsdp", "transformer_block", numerics) for numerics in ("eager_order", "exact")],
    full=product(("hsdp",), MERGING, "exact"))
def test_two_replicas_have_one_sum_however_all_reduces_merge(proof, cell, reference):
    assert proof.bits(cell) == proof.bits(reference)
    assert proof.launched(cell)["all_reduce"] < proof.launched(reference)["all_reduce"] / 2
    assert not any("all-reduce-merged" in plan["diagnostics"] for plan in proof.plans(cell))


@compared(eager, fast=[Cell("ddp", "eager", "fp32", twist="buckets rebuilt")])
def test_eager_ddp_that_rebuilds_its_buckets_adds_later_steps_in_another_order(proof, cell, reference):
    # Its first step is added in registration order, later ones in that of the gradients: no one plan has those bits.
    assert proof.bits(cell)[1] != proof.bits(reference)[1]


@compared(
    by_hand,
    fast=[Cell("ddp", "by hand", "bf16", "transformer_block", "eager_order", twist="payloads reversed")],
    full=[cell.like("by hand", mode=cell.mode, numerics=cell.numerics, options=cell.options, twist="payloads reversed")
          for cell in product(("ddp", "hsdp 3x2"), OF_EAGERS_UNITS, "free")])
def test_flat_buffers_in_another_order_give_other_bits(proof, cell, reference):
    assert proof.bits(cell)[1] != proof.bits(reference)[1]


@compared(
    eager,
    full=[Cell(parallelism, "unplanned", dtype) for parallelism in ("hsdp", "hsdp 3x2") for dtype in DTYPES])
def test_the_graphs_own_order_of_reductions_is_not_that_of_eager_hsdp(proof, cell, reference):
    # The graph adds up over replicas first, eager FSDP2 over shards: were the bits equal, keeping the order would show
    # nothing.
    assert proof.bits(cell)[1] != proof.bits(reference)[1]


# -- buckets that are no unit of eager's: the sums of the same flat buffers, in eager's order


@compared(
    by_hand,
    fast=[auto("fsdp", "eager_order"), auto("fsdp", "eager_order", "fp32"), auto("ddp", "eager_order"), auto("hsdp", "free")],
    full=[auto(parallelism, numerics, dtype)
          for parallelism in ("fsdp", *REPLICATED, "hsdp 3x2") for numerics in ("eager_order", "free") for dtype in DTYPES])
def test_autos_buckets_have_the_bits_of_the_same_flat_buffers_reduced_by_hand(proof, cell, reference):
    merged = [bucket for kind in ("reduce_scatter", "all_reduce") for bucket in proof.buckets(cell, kind)]
    assert any(bucket["packed"] for bucket in merged)
    assert proof.bits(cell) == proof.bits(reference)


@compared(
    by_hand,
    fast=[auto("fsdp", "eager_order", twist="payloads reversed")],
    full=[auto("ddp", "free", twist="payloads reversed")])
def test_autos_payloads_in_another_order_give_other_bits(proof, cell, reference):
    assert proof.bits(cell)[1] != proof.bits(reference)[1]


@compared(unplanned, fast=[auto("fsdp+tp", "free")], full=[auto("fsdp+tp", "eager_order", dtype) for dtype in DTYPES])
def test_two_ranks_have_one_sum_whatever_auto_merges(proof, cell, reference):
    assert any(bucket["packed"] for bucket in proof.buckets(cell, "reduce_scatter"))
    assert proof.bits(cell) == proof.bits(reference)


@compared(
    unplanned,
    fast=[auto("ddp", "free")],
    full=[auto(parallelism, "free", dtype) for parallelism in ("ddp", "hsdp 3x2") for dtype in DTYPES])
def test_under_free_numerics_other_sums_train_alike(proof, cell, reference):
    assert proof.bits(cell)[1] != proof.bits(reference)[1]
    for mine, theirs in zip(proof.ranks(cell), proof.ranks(reference), strict=True):
        assert mine["losses"] == pytest.approx(theirs["losses"], rel=0.02)


# -- that there was something to prove


@compared(
    unplanned,
    fast=[planned("fsdp", "transformer_block", "eager_order"), planned("fsdp", "transformer_block", "exact"),
          planned("fsdp+tp", "transformer_block", "eager_order")],
    full=[*product((*SHARDED, "hsdp"), MERGING, "exact"), *llamas("eager_order"), *llamas("exact")])
def test_a_plan_launches_fewer_collectives_and_leaves_those_of_tensor_parallelism_alone(proof, cell, reference):
    before, after = proof.launched(reference), proof.launched(cell)
    assert before["all_gather"] == before["reduce_scatter"] == (25 if "llama" in cell.model else 13)  # one a parameter
    assert after["all_gather"] < before["all_gather"] and after["reduce_scatter"] < before["reduce_scatter"]
    if cell.parallelism != "hsdp":  # its all-reduces are of gradients
        assert after["all_reduce"] == before["all_reduce"]
    assert {bucket["mesh_dim"] for plan in proof.plans(cell) for bucket in plan["buckets"]} <= {"fsdp", "shard", "replicate"}
    if cell.mode in OF_EAGERS_UNITS and cell.options != ACROSS_UNITS:
        # Two blocks, [norm, output], and the embedding by itself.
        assert (after["all_gather"], after["reduce_scatter"]) == (4, 4)


@compared(
    unplanned,
    fast=[planned(parallelism, "transformer_block", "eager_order") for parallelism in (*SHARDED, *REPLICATED)],
    full=[*product((*SHARDED, *REPLICATED), MODES, "exact"), *llamas("eager_order")])
def test_training_goes_somewhere_and_all_ranks_run_one_plan(proof, cell, reference):
    for rank in proof.ranks(cell):
        assert len(set(rank["losses"])) > cell.steps // 2
        assert all(0 < loss < 20 for loss in rank["losses"])
    for plans in zip(*(rank["plans"] for rank in proof.ranks(cell)), strict=True):
        assert len({(plan["part"], plan["digest"], plan["plan"]) for plan in plans}) == 1
        # One rank's question is answered by a computation at most; the others wait for it or find it.
        assert [plan["source"] for plan in plans].count("computed") <= 1
