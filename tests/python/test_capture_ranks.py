"""Four real gloo processes capture one step: one digest, whatever their shards and group names are."""

import json

import pytest
from ranks import run_ranks


def report(*cases):
    said = run_ranks("capture_worker.py", 4, *cases, timeout=300)
    (line,) = [line for line in said[0].splitlines() if line.startswith("REPORT ")]
    return json.loads(line.removeprefix("REPORT "))


def digests(ranks):
    return {rank["digest"] for rank in ranks}


@pytest.mark.slow
def test_all_ranks_give_one_digest_also_with_uneven_shards(vectors):
    found = report("fsdp_short", "hsdp_uneven", "fsdp_uneven:hidden=9")
    assert len(found) == 9
    for graph, ranks in found.items():
        assert len(digests(ranks)) == 1, f"{graph}: {ranks}"
    # The ranks did see different things.
    assert len({rank["raw_nodes"] for rank in found["fsdp_short.joint"]}) == 3
    assert len({tuple(rank["groups"]) for rank in found["hsdp_uneven.bw"]}) == 4
    # Another process, another day: the digest that was written down. (Made with the torch that deploy/setup.sh installs.)
    written = {path.name: expected for path, expected in vectors}
    for graph in ("fsdp_short.fw", "fsdp_short.bw", "hsdp_uneven.joint"):
        assert digests(found[graph]) == {written[f"{graph}.rank3.json.gz"]}, graph
    # Another shape is another step.
    for kind in ("joint", "fw", "bw"):
        assert digests(found[f"fsdp_uneven:hidden=9.{kind}"]) != {written[f"fsdp_uneven.{kind}.rank0.json.gz"]}
