"""What every attack needs: a real server with its default limits on a loopback port, an honest caller beside the
attackers, and what that caller and the server's memory went through.

    with kit.Scene() as scene:
        seen = scene.under(lambda: my_attack(scene.server.address))
        seen.holds("my attack", memory_mib=200)

An attack is bounded in calls and in seconds: `size(small, large)` is the first, or the second where BUCKETD_FULL=1."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from harness import Server, expect

FULL = os.environ.get("BUCKETD_FULL") == "1"
# An attack may make the slowest hundredth of honest hits so many times slower,
TIMES = 10
# where a quiet server's are not counted as faster than this: attackers, caller and server share two cores.
FLOOR_SECONDS = 0.003 if FULL else 0.1
_QUIET_SECONDS = 3.0 if FULL else 1.0
MESSAGES_MIB = 256  # what --max-in-flight-bytes leaves for messages
_BASE_MIB = 64  # of a server that has nothing in its caches


def size(small, large):
    return large if FULL else small


def p99(seconds: list[float]) -> float:
    return sorted(seconds)[max(0, len(seconds) - 1 - len(seconds) // 100)]


@dataclasses.dataclass(frozen=True)
class Seen:
    """Of the honest caller, in seconds, and of the server's resident memory, in MiB."""

    quiet: list[float]
    attacked: list[float]
    errors: list[str]
    mib_before: float
    mib_peak: float

    def __str__(self) -> str:
        return (f"hits p99 {1e3 * p99(self.quiet):.1f} ms quiet, {1e3 * p99(self.attacked):.1f} ms attacked, worst "
                f"{1e3 * max(self.attacked):.0f} ms, {len(self.errors)} of {len(self.attacked)} failed; memory "
                f"{self.mib_before:.0f} MiB before, {self.mib_peak:.0f} MiB at most")

    def holds(self, attack: str, memory_mib: float) -> None:
        """`memory_mib`: what the attack may take beside what a server has anyway."""
        print(f"{attack}: {self}")
        expect(not self.errors, f"{attack}: honest hits failed:", set(self.errors), str(self))
        allowed = TIMES * max(p99(self.quiet), FLOOR_SECONDS)
        expect(p99(self.attacked) <= allowed, f"{attack}: at most {1e3 * allowed:.0f} ms were expected:", str(self))
        expect(self.mib_peak <= _BASE_MIB + memory_mib, f"{attack}: at most {_BASE_MIB + memory_mib:.0f} MiB were expected:",
               str(self))


class Honest:
    """The caller of honest.py, in a process of its own."""

    def __init__(self, address: str, folder: str):
        self._path = pathlib.Path(folder, "hits")
        self._process = subprocess.Popen([sys.executable, str(pathlib.Path(__file__).with_name("honest.py")), address,
                                          str(self._path)], stdout=subprocess.PIPE, text=True)
        said = self._process.stdout.readline()
        expect(said == "ready\n", "the honest caller did not begin:", said)

    def between(self, begin: float, end: float) -> tuple[list[float], list[str]]:
        """Of the calls that were due in that time, when all of them have ended: seconds, and what went wrong."""
        until = time.monotonic() + 120
        while True:
            whole = self._path.read_text().rpartition("\n")[0]
            calls = [line.split() for line in whole.splitlines()]
            if calls and float(calls[-1][0]) >= end:
                break
            expect(time.monotonic() < until and self._process.poll() is None, "the honest caller is stuck")
            time.sleep(0.05)
        meant = [call for call in calls if begin <= float(call[0]) < end]
        return [float(seconds) for _, seconds, _ in meant], [said for _, _, said in meant if said != "ok"]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


class Scene:
    """A server on a port of the loopback network and an honest caller of it. `flags`: of the server, beside its defaults."""

    def __init__(self, *flags: str):
        self._folder = tempfile.TemporaryDirectory(prefix="attacks-")
        self.server = Server(*flags, address="127.0.0.1:0", folder=self._folder.name, rss_mib=1 << 20)

    def __enter__(self) -> Scene:
        self.server.start()
        self.honest = Honest(self.server.address, self._folder.name)
        return self

    def __exit__(self, *error) -> None:
        self.honest.stop()
        self.server.__exit__(*error)
        self._folder.cleanup()

    def _mib(self, field: str) -> float:
        status = pathlib.Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", status).group(1)) / 1024

    def _quiet(self) -> list[float]:
        begin = time.monotonic()
        time.sleep(_QUIET_SECONDS)
        quiet, errors = self.honest.between(begin, begin + _QUIET_SECONDS)
        expect(not errors, "honest hits failed without an attack:", errors)
        return quiet

    def under(self, attack, seconds: float = 0.0) -> Seen:
        """What is seen while `attack()` runs, `seconds` at least, beside the quieter of a while before and one after it: what
        else the machine did in one of them allows the attack nothing."""
        quiet = self._quiet()
        before = self._mib("VmRSS")
        begin = time.monotonic()
        attack()
        time.sleep(max(0.2, begin + seconds - time.monotonic()))
        attacked, errors = self.honest.between(begin, time.monotonic())
        self.server.watch()
        return Seen(min(quiet, self._quiet(), key=p99), attacked, errors, before, self._mib("VmHWM"))
