"""Whether buckets of which a plan promises the bits of gloo's sums may run on our ring."""

from __future__ import annotations

from collections.abc import Sequence

from .plan import Bucket, Plan

_SEGMENT = 1 << 20  # bytes


def chunks_are_slices(elements: int, item: int) -> bool:
    """gloo adds a buffer chunk by chunk, each along its own ring of ranks: a chunk is a rank's slice in two or more equal segments of at
    most a mebibyte, rounded up to whole elements. Where nothing is rounded an element's sum depends on its rank alone, and our ring adds
    in that order. As in passes/pass/numerics.h."""
    return elements % max(2, -(-elements * item // _SEGMENT)) == 0


def why_other(plan: Plan, bucket: Bucket, counts: Sequence[int], item: int) -> str:
    """Why sums of our ring would be other ones than those that the plan promises; "" where they are those, or where it promises none.
    `counts`: elements of a rank, by member."""
    if plan.backend != "gloo" or plan.bits in ("", "neither") or bucket.kind == "all_gather" or bucket.group_size <= 2:
        return ""
    added = [sum(counts)] if bucket.packed else counts
    if bucket.kind == "reduce_scatter" and all(chunks_are_slices(elements, item) for elements in added):
        return ""
    return f"the plan keeps bits ({plan.bits}), and gloo adds these sums in another order than our ring"
