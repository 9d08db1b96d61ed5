"""Runs of compiled code in a trace of torch.profiler: which kernels each launched, in order, and what they took.

Inductor marks a run as `## Call CompiledFxGraph ... ##`. Code that calls a graph's operators one by one (aot_eager) runs in autograd's
`CompiledFunction` and `CompiledFunctionBackward`. On CPUs a kernel is an operator of the run's thread that is in no other one. On
GPUs it is found by the call that launched it (`correlation`): generated kernels by their own names, others by the operator around the
call, whose kernels count as one.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import gzip
import json
import os
import re
import zlib
from collections.abc import Sequence
from typing import Any

from ..errors import BucketdError

GENERATED = re.compile(r"(?:graph_\d+_)?(?:cpp|triton_[a-z]+)_fused_?(.*?)_\d+")

INDUCTORS = re.compile(r"## Call CompiledFxGraph.*", re.DOTALL)
OPERATORS = re.compile(r"CompiledFunction(?:Backward)?")
_COLLECTIVE = re.compile(r"(?:_c10d_functional|c10d|gloo|nccl)[:D]|record_param_comms")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_MOST_BYTES = 1 << 31

Run = list[tuple[str, float]]  # names and microseconds


class TraceError(BucketdError):
    """No trace of torch.profiler; the message says where, and what was expected there."""

    reason = "TRACE_UNREADABLE"


@dataclasses.dataclass(frozen=True, slots=True)
class _Event:
    name: str
    category: str
    start: float
    end: float
    thread: tuple[str, str]
    correlation: int | None


def read_runs(path: str | os.PathLike[str], dropped: collections.Counter, marks: re.Pattern[str] = INDUCTORS) -> list[Run]:
    """Of a file that export_chrome_trace wrote, plain or gzip; without collectives. `marks`: what runs are called. `dropped` counts
    kernels of no run, by why."""
    events = _events(os.fspath(path))
    by_thread: dict[object, list[_Event]] = collections.defaultdict(list)
    for event in events:
        if event.category == "cpu_op" or marks.fullmatch(event.name):
            by_thread[event.thread].append(event)
    spans = {thread: _spans(found, marks) for thread, found in sorted(by_thread.items())}
    kernels = [event for event in events if event.category in _ON_DEVICE]
    if kernels:
        return _on_device(events, kernels, spans, dropped)
    return [[(op.name, op.end - op.start) for op in ops if not _COLLECTIVE.match(op.name)] for found in spans.values() for _, ops in found]


def _spans(events: list[_Event], marks: re.Pattern[str]) -> list[tuple[_Event, list[_Event]]]:
    """The runs of one thread, each with the operators in it that are in no other."""
    runs: list[tuple[_Event, list[_Event]]] = []
    for event in sorted(events, key=lambda e: (e.start, -e.end, not marks.fullmatch(e.name))):
        if marks.fullmatch(event.name):
            if not runs or event.start >= runs[-1][0].end:
                runs.append((event, []))
        elif runs and event.end <= runs[-1][0].end and (not runs[-1][1] or event.start >= runs[-1][1][-1].end):
            runs[-1][1].append(event)
    return runs


def _on_device(events: list[_Event], kernels: list[_Event], spans: dict, dropped: collections.Counter) -> list[Run]:
    calls = {event.correlation: event for event in events if event.category in _LAUNCHES and event.correlation is not None}
    runs: dict[tuple[object, int], dict[object, list]] = {}
    placed = [(calls[kernel.correlation], kernel) for kernel in kernels if kernel.correlation in calls]
    if len(placed) < len(kernels):
        dropped["kernels whose launch is not in the trace"] += len(kernels) - len(placed)
    for call, kernel in sorted(placed, key=lambda each: (each[0].start, each[1].start)):
        of_thread = spans.get(call.thread, [])
        place = _around([run for run, _ in of_thread], call.start)
        if place is None:
            dropped["kernels outside of compiled code"] += 1
            continue
        ops = of_thread[place][1]
        number = _around(ops, call.start)
        op = kernel if number is None or GENERATED.fullmatch(kernel.name) else ops[number]
        if not _COLLECTIVE.match(kernel.name) and not _COLLECTIVE.match(op.name):
            runs.setdefault((call.thread, place), {}).setdefault(id(op), [op.name, 0.0])[1] += kernel.end - kernel.start
    return [[(name, took) for name, took in found.values()] for found in runs.values()]


def _around(spans: Sequence[_Event], time: float) -> int | None:
    """Of spans one after the other, the one around `time`."""
    place = bisect.bisect_right(spans, time, key=lambda span: span.start) - 1
    return place if place >= 0 and time < spans[place].end else None


# -- the file


def _events(path: str) -> list[_Event]:
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            data = (gzip.GzipFile(fileobj=file) if packed else file).read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise TraceError(f"{path}: more than {_MOST_BYTES} bytes")
        document = json.loads(data)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise TraceError(f"{path}: expected JSON, plain or gzip: {type(error).__name__}: {error}") from error
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise TraceError(f'{path}: no list "traceEvents"; expected what torch.profiler\'s export_chrome_trace writes')
    return [made for at, event in enumerate(events) if (made := _event(f"{path}: traceEvents[{at}]", event)) is not None]


def _event(where: str, event: Any) -> _Event | None:
    if not isinstance(event, dict):
        raise TraceError(f"{where}: expected an object, is {type(event).__name__}")
    if event.get("ph") != "X" or event.get("cat") not in ("cpu_op", "user_annotation", *_ON_DEVICE, *_LAUNCHES):
        return None
    name, args, start, took = event.get("name"), event.get("args", {}), event.get("ts"), event.get("dur")
    if not isinstance(name, str) or not isinstance(args, dict):
        raise TraceError(f'{where}: expected a text "name" and an object "args"')
    for field, value, least in (("ts", start, -1e18), ("dur", took, 0)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e18:
            raise TraceError(f'{where} ({name[:80]!r}): "{field}" is {str(value)[:40]}, expected microseconds')
    correlation = args.get("correlation")
    thread = (str(event.get("pid")), str(event.get("tid")))
    return _Event(name, event["cat"], start, start + took, thread, correlation if isinstance(correlation, int) else None)
