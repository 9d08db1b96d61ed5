"""Code that waits as torch's functional collectives have it, around graphs whose buckets libbucket_executor runs."""

import json

import pytest
from ranks import run_ranks
from trainers_page import blocks

WORLD = 2
TIMEOUT = 20.0  # seconds of a bucket
CASES = ("waits_again", "waits_again_under_way", "takes_and_gives", "leaves_under_way", "of_a_dtensor")
COMPILERS = ("aot_eager", "inductor")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What rank 0 found, and what all said."""
    out = tmp_path_factory.mktemp("waits") / "found.json"
    said = run_ranks("wait_worker.py", WORLD, str(TIMEOUT), str(out), timeout=300)
    return json.loads(out.read_text()), said


@pytest.mark.slow
def test_waits_around_the_executors_buckets_change_no_bit(ranks):
    found, _ = ranks
    for compiler in COMPILERS:
        for case in CASES:
            assert found[case][f"{compiler} buckets"] == [[2]], (case, compiler, "the gathers of two parameters are one bucket, and it ran")
            assert found[case][compiler] == found[case]["eager"], (case, compiler)
        unplanned, planned = found[f"trained {compiler}"]
        assert planned == unplanned, compiler


@pytest.mark.slow
def test_no_work_is_left_to_wait_for_and_nobody_warns(ranks):
    found, said = ranks
    assert found["unwaited"] == 0, "torch's registry still holds work"
    assert found["warned"] == []
    for words in ("unwaited", "Warning", "another order than the plan"):
        assert not any(words in text for text in said), said


@pytest.mark.slow
def test_the_pages_rounds_on_gloo_run(tmp_path):
    """A few of them: after thousands, gloo damages a rank's heap."""
    (code,) = blocks("gloo with several collectives in flight", "python")
    few = code.replace("range(2500)", "range(5)")
    assert few != code
    script = tmp_path / "rounds.py"
    script.write_text(few)
    run_ranks(str(script), 3, timeout=100)
