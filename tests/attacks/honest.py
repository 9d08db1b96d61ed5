"""A caller who asks for one cached plan at a steady pace: honest.py ADDRESS FILE. A line a call goes to FILE: when it was
due, how long after that it was answered (both in seconds of the monotonic clock), and what was wrong with it, or "ok".

A call that is late because the one before it was late counts from when it was due, so that a server that stands still for
a second spoils a second's calls and not one."""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))

import driver  # noqa: E402, F401
import grpc  # noqa: E402
from harness import Caller, Key  # noqa: E402

KEY = Key(3, 8, 0)
PERIOD = 0.005
PATIENCE = 60.0


def main(address: str, path: str) -> None:
    caller = Caller(address)
    request = KEY.request()
    caller.ask(KEY, PATIENCE, inline=True)
    print("ready", flush=True)
    due = time.monotonic()
    with open(path, "w", buffering=1) as lines:
        while True:
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                answer = caller.stub.GetPlan(request, timeout=PATIENCE)
                said = "ok" if answer.HasField("plan") else "no-plan"
            except grpc.RpcError as error:
                said = error.code().name
            lines.write(f"{due:.6f} {time.monotonic() - due:.6f} {said}\n")
            due += PERIOD


if __name__ == "__main__":
    main(*sys.argv[1:])
