"""Where each parameter lies in a bucket's buffer, byte by byte: beside the buffers of eager FSDP2 on the same ranks, and
beside shards cut by hand. Gloo tells where every byte lies just as NCCL would."""

from __future__ import annotations

import functools
import json
import pathlib
import sys
import tempfile

import pytest
import torch
from ranks import run_ranks

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "training"), str(HERE.parents[1] / "client" / "python" / "examples")]

import model as tiny  # noqa: E402

pytestmark = pytest.mark.slow

RANKS = 4
FAST = ("uneven rows", "columns", "uneven columns", "beside tensor parallelism")
FULL = ("uneven beside tensor parallelism", "mixed dtypes")


@functools.cache
def _found(cases: tuple[str, ...]):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "layouts.json")
        try:
            run_ranks("training/layout_worker.py", RANKS, *cases, str(out), timeout=500)
        except (AssertionError, TimeoutError) as error:
            return error
        return json.loads(out.read_text())


def found(case: str) -> list[dict]:
    """By rank."""
    ranks = _found(FAST if case in FAST else FULL)
    if isinstance(ranks, Exception):
        raise ranks
    return [rank[case] for rank in ranks]


def buckets(case: str, kind: str) -> list[tuple[int, dict]]:
    """With their ranks."""
    return [(rank, bucket) for rank, of in enumerate(found(case)) for bucket in of["planned"] if bucket["kind"] == kind]


def piece(bucket: dict, name: str, size: int, row: int = 0) -> bytes:
    """`size` bytes of a member in slice `row` of the buffer, where the plan says that they lie."""
    at = row * bucket["slice_bytes"] + bucket["offsets"][bucket["parameters"].index(name)]
    return bytes.fromhex(bucket["bytes"])[at : at + size]


every_layout = pytest.mark.parametrize("case", [
    "uneven rows",
    pytest.param("columns", id="T5.9 columns"),
    pytest.param("beside tensor parallelism", id="T5.12 beside tensor parallelism"),
    pytest.param("uneven beside tensor parallelism", marks=pytest.mark.full),
])


@every_layout
def test_each_bucket_holds_byte_for_byte_what_eager_fsdp2_sends(case):
    for rank in found(case):
        assert [bucket["kind"] for bucket in rank["planned"]] == 3 * ["all_gather"] + 3 * ["reduce_scatter"]
        for bucket in rank["planned"]:
            sent = [buffer for buffer in rank["eager"] if all(buffer[k] == bucket[k] for k in ("kind", "parameters"))]
            assert len(sent) == 1, bucket["parameters"]
            assert sent[0]["bytes"] == bucket["bytes"], bucket["parameters"]


@every_layout
def test_members_lie_in_each_ranks_slice_where_the_plan_says(case):
    for rank, bucket in buckets(case, "all_gather"):
        assert len(bucket["bytes"]) == 2 * bucket["slice_bytes"]
        for name, own in zip(bucket["parameters"], bucket["own"], strict=True):
            assert piece(bucket, name, len(own) // 2).hex() == own, (rank, name)
    size = 2 if "tensor" in case else RANKS
    gathers = {tuple(bucket["parameters"]): bucket for _, bucket in buckets(case, "all_gather")}
    for _, bucket in buckets(case, "reduce_scatter"):
        assert len(bucket["bytes"]) == 2 * size * bucket["slice_bytes"]
        # A gradient lies where its parameter does: bf16 is gathered, fp32 is scattered.
        assert bucket["offsets"] == [2 * offset for offset in gathers[tuple(bucket["parameters"])]["offsets"]]


def test_t5_9_a_rank_gets_columns_as_rows_of_its_own():
    # [12, 8] over 4 ranks by columns: rank r sends the 12 rows of columns 2r and 2r + 1, one behind the other.
    weight = tiny.build(tiny.Config(dim=8, hidden=12)).layers[0].feed_forward.w1.weight.detach().bfloat16()
    for rank, bucket in buckets("columns", "all_gather"):
        if "layers.0.feed_forward.w1.weight" in bucket["parameters"]:
            part = weight[:, 2 * rank : 2 * rank + 2].contiguous()
            sent = piece(bucket, "layers.0.feed_forward.w1.weight", 2 * part.numel())
            assert sent == part.view(torch.uint8).numpy().tobytes()


def test_t5_10_uneven_columns_are_an_error_in_eager_and_each_ranks_own_under_a_plan():
    # Ranks trace unlike graphs, which padding of the first dimension does not explain; their collectives are alike, so they
    # follow the first rank's plan.
    for rank in found("uneven columns"):
        assert "uneven sharding on dim 1" in rank["eager"]
        assert rank["difference"] == 0
    for rank, bucket in buckets("uneven columns", "all_gather"):
        for name, own in zip(bucket["parameters"], bucket["own"], strict=True):
            assert piece(bucket, name, len(own) // 2).hex() == own, (rank, name)


@pytest.mark.full
def test_t5_11_gradients_of_different_dtypes_share_no_buffer():
    # Eager refuses such a unit. A bucket has one dtype; what is of another dtype is in another bucket, or in none.
    norms = {"layers.0.ffn_norm.weight", "layers.1.ffn_norm.weight", "norm.weight"}
    scatters = buckets("mixed dtypes", "reduce_scatter")
    assert len(scatters) == 2 * RANKS
    assert all(bucket["dtype"] == "f32" and not norms & set(bucket["parameters"]) for _, bucket in scatters)
    gathered = {name for _, bucket in buckets("mixed dtypes", "all_gather") for name in bucket["parameters"]}
    assert norms < gathered


def test_t5_12_beside_tensor_parallelism_a_rank_sends_rows_of_its_own_part():
    # [8, 2] over tp 2, then fsdp 2: rank (d, t) has rows 4t to 4t + 3 of it, and sends two of those.
    weight = tiny.build(tiny.Config(dim=2, hidden=8)).layers[0].feed_forward.w1.weight.detach().bfloat16()
    for rank, bucket in buckets("beside tensor parallelism", "all_gather"):
        if "layers.0.feed_forward.w1.weight" in bucket["parameters"]:
            first = 4 * (rank % 2) + 2 * (rank // 2)
            sent = piece(bucket, "layers.0.feed_forward.w1.weight", 8)
            assert sent == weight[first : first + 2].view(torch.uint8).numpy().tobytes()
