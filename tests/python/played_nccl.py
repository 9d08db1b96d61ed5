"""played_nccl.py STEPS RANK [LIBRARY]: one of two ranks whose NCCL runs all-gathers for torch and all-reduces for the executor, as far as a profiler
plugin sees that: loads what NCCL_PROFILER_PLUGIN names, and stays until its input ends. Structures as in NCCL 2.28 to 2.30
(src/include/plugin/profiler/profiler_v5.h), written a second time beside gpu_agent/profiler/nccl_profiler_abi.h.

LIBRARY is a libnccl.so.2 whose own code for plugins of version 5 is put between: it takes events as its newest version has them, which
begin like version 5's, and makes those of version 5. It needs no GPU for that, but its symbols.
"""

import ctypes
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

from bucketd import native

PLUGIN = native.library("libbucketd_nccl_profiler.so") or "libbucketd_nccl_profiler.so"
WORLD, ELEMENTS = 2, 1 << 18  # of bf16, a rank
BYTES = WORLD * 2 * ELEMENTS
_COLL, _KERNEL_CH, _COLL_API, _KERNEL_CH_STOP = 1 << 1, 1 << 6, 1 << 9, 22


def nanoseconds(step: int, rank: int) -> int:
    return 100_000 + 1000 * step + 30_000 * ((step + rank) % 2)


class Coll(ctypes.Structure):
    _fields_ = [("seqNumber", ctypes.c_uint64), ("func", ctypes.c_char_p), ("sendBuff", ctypes.c_void_p), ("recvBuff", ctypes.c_void_p),
                ("count", ctypes.c_size_t), ("root", ctypes.c_int), ("datatype", ctypes.c_char_p), ("nChannels", ctypes.c_uint8),
                ("nWarps", ctypes.c_uint8), ("algo", ctypes.c_char_p), ("proto", ctypes.c_char_p), ("parentGroup", ctypes.c_void_p)]


class CollApi(ctypes.Structure):
    _fields_ = [("func", ctypes.c_char_p), ("count", ctypes.c_size_t), ("datatype", ctypes.c_char_p), ("root", ctypes.c_int),
                ("stream", ctypes.c_void_p), ("graphCaptured", ctypes.c_bool)]


class KernelCh(ctypes.Structure):
    _fields_ = [("channelId", ctypes.c_uint8), ("pTimer", ctypes.c_uint64)]


class Kinds(ctypes.Union):
    _fields_ = [("coll", Coll), ("collApi", CollApi), ("kernelCh", KernelCh)]


class Event(ctypes.Structure):
    _anonymous_ = ["of"]
    _fields_ = [("type", ctypes.c_uint64), ("parentObj", ctypes.c_void_p), ("rank", ctypes.c_int), ("of", Kinds), ("newer", ctypes.c_byte * 256)]


_HANDLE = ctypes.POINTER(ctypes.c_void_p)


class Plugin(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("init", ctypes.CFUNCTYPE(ctypes.c_int, _HANDLE, ctypes.c_uint64, ctypes.POINTER(ctypes.c_int), ctypes.c_char_p, ctypes.c_int, ctypes.c_int,
                                  ctypes.c_int, ctypes.c_void_p)),
        ("startEvent", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _HANDLE, ctypes.POINTER(Event))),
        ("stopEvent", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
        ("recordEventState", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))),
        ("finalize", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p))]


class Communicator:
    def __init__(self, plugin: Plugin, number: int, name: bytes, rank: int):
        self.plugin, self.context, mask = plugin, ctypes.c_void_p(), ctypes.c_int()
        assert plugin.init(ctypes.byref(self.context), number, ctypes.byref(mask), name, 1, WORLD, rank, None) == 0
        assert mask.value == _COLL | _KERNEL_CH

    def start(self, event: Event) -> int:
        handle = ctypes.c_void_p()
        assert self.plugin.startEvent(self.context, ctypes.byref(handle), ctypes.byref(event)) == 0
        return handle.value

    def run(self, sequence: int, func: bytes, count: int, datatype: bytes, begin: int, end: int) -> None:
        called = self.start(Event(type=_COLL_API, of=Kinds(collApi=CollApi(func=func, count=ELEMENTS, datatype=b"ncclBfloat16"))))
        coll = self.start(Event(type=_COLL, parentObj=called, of=Kinds(
            coll=Coll(seqNumber=sequence, func=func, count=count, datatype=datatype, nChannels=2))))
        self.plugin.stopEvent(coll)
        channels = [self.start(Event(type=_KERNEL_CH, parentObj=coll, of=Kinds(kernelCh=KernelCh(channelId=c, pTimer=begin + c)))) for c in range(2)]
        for channel in channels:
            self.plugin.recordEventState(channel, _KERNEL_CH_STOP, ctypes.byref(ctypes.c_uint64(end)))
            self.plugin.stopEvent(channel)


def symbols(library: str) -> dict[str, int]:
    """Where these are in an NCCL that says so: a function that everybody may call, and the one that takes plugins of version 5."""
    listed = subprocess.run(["nm", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    wanted = {"ncclGetVersion": "exported", "_Z18getNcclProfiler_v5Pv": "takes"}
    return {wanted[name]: int(at, 16) for at, _, name in map(str.split, listed.splitlines()) if name in wanted}


def nccl_with_symbols() -> str | None:
    """That of the wheel, as far as it is here."""
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    found = [str(path) for folder in (spec.submodule_search_locations if spec else ()) for path in pathlib.Path(folder).glob("lib/libnccl.so.2")]
    return next((path for path in found if shutil.which("nm") and len(symbols(path)) == 2), None)


def through(library: str, plugin: ctypes.CDLL) -> Plugin:
    at, nccl = symbols(library), ctypes.CDLL(library)
    base = ctypes.cast(nccl.ncclGetVersion, ctypes.c_void_p).value - at["exported"]
    taken = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(base + at["takes"])(plugin._handle)
    return Plugin.from_address(taken)


def main(steps: int, rank: int, library: str = "") -> None:
    loaded = ctypes.CDLL(os.environ["NCCL_PROFILER_PLUGIN"])
    plugin = through(library, loaded) if library else Plugin.in_dll(loaded, "ncclProfiler_v5")
    torchs, executors = Communicator(plugin, 17, b"default_pg", rank), Communicator(plugin, 18, b"bucketd dp.0", rank)
    for step in range(steps):
        begin = 10**12 + 10**9 * step
        torchs.run(step, b"AllGather", 2 * ELEMENTS, b"ncclInt8", begin, begin + nanoseconds(step, rank))
        executors.run(step, b"AllReduce", ELEMENTS, b"ncclBfloat16", begin, begin + 5000)
    sys.stdin.read()
    for one in (torchs, executors):
        assert plugin.finalize(one.context) == 0


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
