"""Training whose buckets libbucket_executor runs: the bits of torch.distributed's, and what is heard when a rank dies."""

import json

import pytest
from ranks import Ranks, run_ranks

from bucketd import bucket_library
from bucketd.errors import ExecutorError

WORLD = 4
TIMEOUT = 20.0  # seconds of a bucket


@pytest.mark.slow
def test_training_through_the_executor_keeps_every_bit(tmp_path):
    out = tmp_path / "found.json"
    run_ranks("executor_worker.py", WORLD, "bits", str(TIMEOUT), str(out), timeout=300)
    found = json.loads(out.read_text())
    executor, planned, unplanned = found["executor"], found["torch.distributed"], found["unplanned"]
    assert executor["kinds"] == ["all_gather", "reduce_scatter"]
    times = [run for graph in executor["times"] for run in graph]
    assert times and all(wire > 0 for _, wire, _ in times), "a bucket did not run on the executor"
    assert all(planned["runners"])
    for what in ("weights", "gradients", "losses"):
        assert executor[what] == unplanned[what] == planned[what], what


@pytest.mark.slow
def test_a_rank_that_is_killed_is_an_error_for_the_others_and_they_start_again(tmp_path):
    out = tmp_path / "killed"
    with Ranks("executor_worker.py", WORLD, "killed", str(TIMEOUT), str(out)) as ranks:
        ended = [status for status, _ in ranks.wait(timeout=240, grace=60)]
    assert ended == [7, 7, -9, 7]
    for rank in (0, 1, 3):
        heard = json.loads(out.with_suffix(f".{rank}").read_text())
        assert heard["seconds"] < TIMEOUT + 10 and "bucket " in heard["said"], heard
    # Nothing is left that keeps a new run from starting.
    run_ranks("executor_worker.py", WORLD, "bits", str(TIMEOUT), str(tmp_path / "again.json"), timeout=300)


def test_a_library_that_is_none_is_an_error_that_names_it(monkeypatch, tmp_path):
    wrong = tmp_path / "libwrong.so"
    wrong.write_bytes(b"not a library")
    monkeypatch.setenv("BUCKETD_EXECUTOR", str(wrong))
    bucket_library.load.cache_clear()
    try:
        with pytest.raises(ExecutorError, match="libwrong.so.*BUCKETD_EXECUTOR"):
            bucket_library.load()
    finally:
        bucket_library.load.cache_clear()
