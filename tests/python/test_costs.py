"""Cost profiles by name and version, as the backend's option, with a real planner."""

import pytest
from layered_graphs import ask, layers
from planners import planner

import bucketd
from bucketd import plan
from bucketd.client import PlannerClient
from bucketd.errors import PlannerError


@pytest.fixture(scope="module")
def to():
    with planner() as one:
        made = PlannerClient(one.address)
        yield made
        made.close()


def asked_by_the_backend(cost_profile):
    """The options that a backend's graphs are planned with."""
    backend = bucketd.backend(address="unix:/not/asked", cost_profile=cost_profile)
    return backend.session.settings.plan_options(["layers.0.up"], "gloo")


@pytest.mark.parametrize("asked,got", [
    (None, "cpu_loopback@1"),
    ("slow_network", "slow_network@1"),
    ("slow_network@1", "slow_network@1"),
    ("slow_network@latest", "slow_network@1"),
    ("latest", "cpu_loopback@1"),
])
def test_a_plan_says_which_version_it_was_made_with(to, asked, got):
    reply = ask(to, layers(56), asked_by_the_backend(asked))
    assert plan.parse(reply.plan).cost_profile == got


def test_a_version_that_there_is_not_is_an_error_that_says_which_there_are(to):
    with pytest.raises(PlannerError) as caught:
        ask(to, layers(56), asked_by_the_backend("slow_network@2"))
    assert caught.value.reason == "PROFILE_UNKNOWN" and "slow_network has versions 1" in str(caught.value)
