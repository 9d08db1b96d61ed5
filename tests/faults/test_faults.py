"""One round of every fault scenario; tests/faults/run.sh runs more of them."""

import driver
import pytest


@pytest.fixture(scope="module")
def reference():
    with driver.harness.Reference() as one:
        yield one


# Up to half a minute each, of what others here do in part.
FULL = ("links_to_the_engine", "replicas_sleep", "clocks_differ", "standby_takes_over", "log_without_room", "writing_forbidden")


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.full) if name in FULL else name for name in driver.NAMES])
def test_the_server_survives(name, reference):
    driver.run(name, seed=1, round_number=0, reference=reference)


def test_a_wrong_plan_is_a_finding(reference):
    key = driver.harness.Key(2, 8, 0)
    reference.check({key: reference.plan(key)}, "as it is")
    with pytest.raises(driver.harness.Finding):
        reference.check({key: reference.plan(key) + b"\0"}, "damaged")
