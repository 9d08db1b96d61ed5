"""Plans of every shape, applied to real graphs and run by real process groups."""

import pytest
from ranks import run_ranks

pytestmark = pytest.mark.slow


def test_any_legal_plan_keeps_every_bit_with_even_and_with_uneven_shards():
    said = run_ranks("apply_worker.py", 4, "4", timeout=300)
    assert len({text.strip().splitlines()[-1] for text in said}) == 1, "the ranks saw different graphs or plans"
