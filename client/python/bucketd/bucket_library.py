"""libbucket_executor (gpu_agent/library/bucket_executor.h) as Python sees it: ctypes, no torch."""

from __future__ import annotations

import ctypes
import functools
import os

from . import native
from .errors import ExecutorError

ABI = 7
_TEXT = ctypes.POINTER(ctypes.c_char)


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("elements", ctypes.c_int64), ("dtype", ctypes.c_int32)]


class BucketSpec(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("channel", ctypes.c_int32), ("kind", ctypes.c_int32), ("op", ctypes.c_int32),
                ("dtype", ctypes.c_int32), ("mode", ctypes.c_int32), ("copies", ctypes.c_int32), ("members", ctypes.c_int32),
                ("counts", ctypes.POINTER(ctypes.c_int64))]


class Channel(ctypes.Structure):
    _fields_ = [("mesh_dim", ctypes.c_char_p), ("lane", ctypes.c_int32), ("rank", ctypes.c_int32), ("size", ctypes.c_int32),
                ("on_this_host", ctypes.c_int32), ("group", ctypes.c_char_p), ("parent", ctypes.c_void_p)]


class Options(ctypes.Structure):
    _fields_ = [("plan", ctypes.c_char_p), ("buckets", ctypes.POINTER(BucketSpec)), ("bucket_count", ctypes.c_int32),
                ("turns", ctypes.POINTER(ctypes.c_int32)), ("turn_count", ctypes.c_int32),
                ("channels", ctypes.POINTER(Channel)), ("channel_count", ctypes.c_int32), ("folder", ctypes.c_char_p),
                ("token", ctypes.c_char_p), ("epoch", ctypes.c_uint64), ("timeout_seconds", ctypes.c_double),
                ("gloo_order", ctypes.c_int32), ("device", ctypes.c_int32), ("arena", ctypes.c_void_p), ("arena_bytes", ctypes.c_int64),
                ("ends_process", ctypes.c_int32)]


class Prediction(ctypes.Structure):
    _fields_ = [("part", ctypes.c_int32), ("exposed_ps", ctypes.c_int64), ("peak_bytes", ctypes.c_int64),
                ("wire_ps", ctypes.POINTER(ctypes.c_int64))]


def find() -> str:
    """$BUCKETD_EXECUTOR, else the wheel's own, else that of the source tree that this package lies in, else the loader's own search."""
    name = "libbucket_executor.so"
    return os.environ.get("BUCKETD_EXECUTOR") or native.library(name) or name


@functools.cache
def load() -> ctypes.CDLL:
    """ExecutorError where there is none, or one of another interface."""
    path = find()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ExecutorError(f"cannot load {path} ({error}); build bucketd, or let BUCKETD_EXECUTOR name the library") from error
    if library.bucket_executor_abi() != ABI:
        raise ExecutorError(f"{path} has interface {library.bucket_executor_abi()}, this client speaks {ABI}")
    error, handle = ctypes.POINTER(_TEXT), ctypes.c_void_p
    library.bucket_executor_open.argtypes = [ctypes.POINTER(Options), error]
    library.bucket_executor_open.restype = handle
    library.bucket_executor_close.argtypes = [handle, error]
    library.bucket_executor_health.argtypes = [handle, error]
    library.bucket_executor_usable.argtypes = [ctypes.c_int32, error]
    library.bucket_executor_refuses.argtypes = [ctypes.c_int32, ctypes.POINTER(BucketSpec), ctypes.c_int32]
    library.bucket_executor_refuses.restype = _TEXT
    library.bucket_executor_plan_bytes.argtypes = [ctypes.POINTER(Options), error]
    library.bucket_executor_plan_bytes.restype = ctypes.c_int64
    library.bucket_executor_start.argtypes = [
        handle, ctypes.c_int32, ctypes.POINTER(Tensor), ctypes.POINTER(Tensor), ctypes.c_void_p, error]
    library.bucket_executor_start.restype = ctypes.c_int64
    library.bucket_executor_join.argtypes = [handle, ctypes.c_int64, ctypes.c_void_p, error]
    library.bucket_executor_wait.argtypes = [handle, ctypes.c_int64, ctypes.c_double, error]
    library.bucket_executor_nccl.argtypes = []
    library.bucket_executor_nccl.restype = _TEXT
    library.bucket_telemetry_open.argtypes = [ctypes.c_char_p, ctypes.c_char_p, error]
    library.bucket_telemetry_open.restype = handle
    library.bucket_telemetry_close.argtypes = [handle]
    library.bucket_telemetry_close.restype = None
    library.bucket_telemetry_dropped.argtypes = [handle]
    library.bucket_telemetry_dropped.restype = ctypes.c_uint64
    library.bucket_executor_report.argtypes = [handle, ctypes.POINTER(Options), handle, ctypes.POINTER(Prediction)]
    library.bucket_executor_peak.argtypes = [handle, ctypes.c_int64]
    library.bucket_executor_peak.restype = None
    library.bucket_free.argtypes = [_TEXT]
    library.bucket_free.restype = None
    return library


def call(function, *arguments, what: str):
    """What `function` returns; ExecutorError with the library's text where that is nothing."""
    text = _TEXT()
    result = function(*arguments, ctypes.byref(text))
    if result:
        return result
    raise ExecutorError(f"{what}: {_taken(text) or '(no reason given)'}")


def refuses(device: int, bucket: BucketSpec, ranks: int) -> str:
    """Why no executor runs such a bucket on the device; "" where one does. ExecutorError where the device runs none at all."""
    return _not_unavailable(_taken(load().bucket_executor_refuses(device, ctypes.byref(bucket), ranks)))


def check_device(device: int) -> None:
    """ExecutorError where the device runs no bucket at all. It is opened for that."""
    text = _TEXT()
    load().bucket_executor_usable(device, ctypes.byref(text))
    _not_unavailable(_taken(text))


def _not_unavailable(why: str) -> str:
    if why.startswith("UNAVAILABLE: "):
        raise ExecutorError(
            f'executor="bucketd" can use no GPU here: {why.removeprefix("UNAVAILABLE: ")}. It wants a libbucket_executor.so of a build '
            'with CUDA (BUCKETD_EXECUTOR names it), a driver and an NCCL; executor="" leaves all buckets to torch.distributed')
    return why


def close(handle: int) -> tuple[bool, str]:
    """Whether nothing uses tensors and arena any more, and the error that the executor came to, or ""."""
    text = _TEXT()
    over = load().bucket_executor_close(handle, ctypes.byref(text))
    return bool(over), _taken(text)


def _taken(text) -> str:
    if not text:
        return ""
    said = ctypes.cast(text, ctypes.c_char_p).value or b""
    load().bucket_free(text)
    return said.decode(errors="replace")


def nccl() -> str:
    """The version of the NCCL that executors on GPUs use here, "2.27.3"; "" where there is none."""
    return _taken(load().bucket_executor_nccl()).removeprefix("NCCL ").partition(" (")[0]
