"""Who computes what among replicas: the check finds what is planted, and replicas with nothing wrong, or one of them dead, pass it."""

import contextlib
import random
import time

import driver
import pytest
from cluster import Cluster, Jobs
from computations import computations, computed_too_often, tally
from harness import Load, expect


def line(plan, lease="held", saved="true"):
    return f"10:00 D plan computed graph=ab plan={plan} mode=auto bytes=7\n10:00 D plan kept plan={plan} lease={lease} saved={saved}\n"


def wrong(*logs):
    return computed_too_often([computations(log) for log in logs])


def test_a_plan_that_two_computed_with_its_lease_is_found():
    assert not wrong(line("a") + line("b"), line("c"))
    (found,) = wrong(line("a"), line("b"), line("a"))
    assert "plan a: 2 times" in found
    assert wrong(line("a") + line("a")), "nor one of them twice"


def test_whoever_died_or_could_not_save_is_followed_by_another_one():
    died = "10:00 D plan computed graph=ab plan=a mode=auto bytes=7\n"
    trouble = "10:00 E store: cannot connect not_logged=0\n"
    assert not wrong(died, line("a"))
    assert not wrong(trouble + line("a", saved="false"), line("a"))
    assert not wrong(line("a", lease="lost") + "10:00 W replica unix:/a: back\n", line("a"))
    assert wrong(died, line("a"), line("a")), "but by one"
    assert tally([computations(died), computations(line("a"))]) == {"died": 1, "held": 1}


def test_without_a_lease_is_for_those_whose_store_was_away():
    assert not wrong("10:00 E store: cannot connect not_logged=0\n" + line("a", lease="none"), line("a"))
    assert wrong(line("a", lease="none"))
    assert wrong(line("a", lease="lost"))
    assert wrong(line("a", lease="none"), "10:00 E store: cannot connect not_logged=0\n"), "not another one's"


def test_one_process_computes_a_plan_once_at_a_time():
    begun = "10:00 D plan computed graph=ab plan=a mode=auto bytes=7\n"
    (found,) = wrong(begun + begun + "10:00 E store: away not_logged=0\n")
    assert "twice at once" in found


@pytest.mark.slow
def test_three_replicas_compute_each_plan_once_and_once_more_behind_a_death():
    """Ranks of jobs ask whichever they like, and callers without a job ask all of them for the same plans at the same time."""
    with driver.harness.Reference() as reference, Cluster(flags=("--cluster-dead-ms", "2000")) as cluster, contextlib.ExitStack() as stack:
        jobs = stack.enter_context(Jobs(cluster, random.Random(5), jobs=2, ranks=3, graphs=1000))
        for replica in cluster.replicas:
            stack.enter_context(Load(replica.address, random.Random(7), callers=2, layers=(2, 6)))
        jobs.wait_for_more(4)
        victim = cluster.busiest()
        victim.server.kill()
        jobs.wait_for_more(2)
        victim.come_back()
        jobs.wait_for_more(4)
        stack.close()
        jobs.check(reference)
        time.sleep(1.5)  # what they say of it is written once a second
        counted = tally(cluster.computations())
        expect(counted["held"] > 20 and set(counted) <= {"held", "died"}, counted)
