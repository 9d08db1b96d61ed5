"""Waiting for what another process does by itself and tells nobody: a metric that rises, a file that appears."""

import time

PATIENCE = 90.0  # seconds, on a machine that is busy with other things


def wait_for(condition, what: str, within: float = PATIENCE):
    """What `condition` gives once that is true; AssertionError if it never is."""
    until = time.monotonic() + within
    while not (result := condition()):
        assert time.monotonic() < until, f"waited {within:g} s in vain for {what}"
        time.sleep(0.05)
    return result
