"""One round of every fault scenario; tests/faults/run.sh runs more of them."""

import driver
import pytest


@pytest.fixture(scope="module")
def reference():
    with driver.harness.Reference() as one:
        yield one


@pytest.mark.slow
@pytest.mark.parametrize("name", driver.NAMES)
def test_the_server_survives(name, reference):
    driver.run(name, seed=1, round_number=0, reference=reference)


def test_a_wrong_plan_is_a_finding(reference):
    key = driver.harness.Key(2, 8, 0)
    reference.check({key: reference.plan(key)}, "as it is")
    with pytest.raises(driver.harness.Finding):
        reference.check({key: reference.plan(key) + b"\0"}, "damaged")
