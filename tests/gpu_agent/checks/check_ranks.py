"""Ranks of a check as processes of their own, none of which outlives the check."""

import signal
import subprocess
import sys
import time

_AFTER_A_FAILURE = 10.0  # seconds in which the others may say what they heard


def run(commands, environment=None) -> list[int]:
    """Their exit codes. Where one fails, the others, which may wait for it, are killed a while later; so are all at a SIGTERM, as a check's
    time limit sends it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started = [subprocess.Popen(command, env=environment) for command in commands]
    until = None
    try:
        while None in (codes := [one.poll() for one in started]):
            if until is None and any(codes):
                until = time.monotonic() + _AFTER_A_FAILURE
            if until is not None and time.monotonic() > until:
                break
            time.sleep(0.05)
    finally:
        for one in started:
            one.kill()
    return [one.wait() for one in started]
