"""deploy/measured.sh: costs that come from training make a job's next generation a better plan."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from live_agents import BINARY

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.quiet  # where others compute, a bucket's latency can come to what makes one bucket the best plan again
def test_what_training_measured_makes_the_next_generations_plan(tmp_path):
    out = tmp_path / "out"
    done = subprocess.run(
        [ROOT / "deploy" / "measured.sh", "--built", "--steps", "12", "--out", out], capture_output=True, text=True, timeout=400,
        env=dict(os.environ, BUCKETD_BIN=str(BINARY.parent), PYTHON=sys.executable))
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    weights = re.findall(r"weights ([0-9a-f]{12})", said)
    assert len(weights) == 2 and weights[0] == weights[1], said  # another order of launches, the same bits
    assert len(re.findall(r"start 0, 0/[fb]w: .* by site@1$", said, re.MULTILINE)) == 2, said
    # Of both parts only what gains enough is replaced: which that is depends on what was measured.
    assert re.search(r"start 1, 0/[fb]w: .* by site@2$", said, re.MULTILINE), said
    found = re.findall(r"a bucket of (\S+) was predicted to take (\d+) us, it took (\d+) us", said)
    assert len(found) == 4 and all(int(figure) > 0 for _, *figures in found for figure in figures), said
    before, after = ({kind: int(predicted) for kind, predicted, _ in half} for half in (found[:2], found[2:]))
    # What was measured is less than what gloo takes; a part that keeps its plan keeps its predictions.
    assert before.keys() == after.keys() and sum(after.values()) < sum(before.values()), said
    exposed = re.findall(r"exposed a run (\d+) us predicted, (\d+) us measured", said)
    assert len(exposed) == 2 and all(int(figure) > 0 for figures in exposed for figure in figures), said
    plans = re.findall(r"0/[fb]w: by the measured costs the plan of generation 0 takes (\S+) ms, that of generation 1 (\S+) ms", said)
    assert plans and all(float(new) < float(old) for old, new in plans), said
    assert re.search(r"predicted to take \S+ times what it took, then \S+ times\n", said)
    assert re.search(r"a step took \S+ ms in generation 0", said), said
