"""The kit sees what attacks are held to."""

import dataclasses
import signal
import time

import kit
import pytest
from harness import Finding


@pytest.mark.quiet
def test_a_server_that_stands_still_is_seen():
    with kit.Scene() as scene:
        quiet = scene.under(lambda: time.sleep(0.5))

        def stand_still():
            scene.server.process.send_signal(signal.SIGSTOP)
            time.sleep(2.0)
            scene.server.process.send_signal(signal.SIGCONT)

        stalled = scene.under(stand_still)
    assert len(quiet.attacked) > 50
    assert not stalled.errors
    quiet.holds("nothing", memory_mib=0)
    assert max(stalled.attacked) > 1.8
    with pytest.raises(Finding, match="at most"):  # as if the machine had been idle before
        dataclasses.replace(stalled, quiet=[0.001]).holds("a stop", memory_mib=0)
    with pytest.raises(Finding, match="MiB were expected"):
        quiet.holds("too little memory", memory_mib=-64)
