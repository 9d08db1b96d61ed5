"""GPUs that tests/gpu_agent/cudasim simulates, under the Python client: libbucket_executor finds them as its GPU module, and what torch
does of a trainer's own comes through the same file. Ranks are threads of one process."""

import contextlib
import ctypes
import os
import pathlib
import weakref

import torch

from bucketd.on_device import Gpu

BUILD = pathlib.Path(os.environ.get("BUCKETD_BIN") or pathlib.Path(__file__).resolve().parents[2] / "build" / "bin").parent
MODULE = BUILD / "tests" / "libsimulated_gpus.so"  # BUCKETD_CUDA_MODULE, before libbucket_executor asks for GPUs
RANKS = 2


class World:
    def __init__(self, seed: int):
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._library = ctypes.CDLL(str(MODULE))
        for name, result, arguments in (
                ("begin", None, [ctypes.c_uint64]), ("findings", ctypes.c_int, [ctypes.c_char_p, ctypes.c_int]),
                ("alloc", pointer, [ctypes.c_int, pointer, number]), ("free", None, [ctypes.c_int, pointer, pointer]),
                ("stream", pointer, [ctypes.c_int]), ("copy", ctypes.c_int, [ctypes.c_int, pointer, pointer, pointer, number]),
                ("capture", None, [pointer]), ("captured", pointer, [pointer]), ("replay", None, [pointer, pointer]), ("destroy", None, [pointer]),
                ("id", None, [ctypes.c_char_p]), ("communicator", pointer, [ctypes.c_char_p, ctypes.c_int])):
            function = getattr(self._library, f"simulated_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, f"_{name}", function)
        self._begin(seed)
        self._name = ctypes.create_string_buffer(128)
        self._id(self._name)

    def findings(self) -> list[str]:
        text = ctypes.create_string_buffer(1 << 16)
        self._findings(text, len(text))
        return text.value.decode().splitlines()


class SimulatedGpu(Gpu):
    """A rank's. What torch has of a GPU comes from the simulation: memory, the stream, the communicator."""

    type = "cpu"  # as torch sees the tensors, whose bytes it never touches

    def __init__(self, world: World, rank: int):
        self.index, self._world = rank, world
        self._stream = world._stream(rank)
        self._communicator = None

    def stream(self) -> int:
        return self._stream

    def communicator(self, group) -> int:
        if self._communicator is None:
            self._communicator = self._world._communicator(self._world._name, self.index)
        return self._communicator

    def _allocate(self, size):
        whole = self.empty((size + 4096,), torch.uint8)
        self.whole = whole  # a view does not keep the tensor that frees its memory
        return whole[-whole.data_ptr() % 4096:][:size]

    def settle(self) -> None:
        self.read(self.empty((1,), torch.uint8))  # behind all that is on its stream

    def empty(self, shape, dtype) -> torch.Tensor:
        """Free again, in the stream's order, when nobody holds it any more: as torch's allocator does it."""
        elements = 1
        for size in shape:
            elements *= size
        size = max(1, elements * dtype.itemsize)
        address = self._world._alloc(self.index, self._stream, size)
        tensor = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype, count=elements).view(shape)
        weakref.finalize(tensor, self._world._free, self.index, self._stream, address).atexit = False
        return tensor

    @contextlib.contextmanager
    def graph(self, work):
        """A function that replays what `work` has enqueued on this rank's stream, until the block is over."""
        self._world._capture(self._stream)
        work()
        graph = self._world._captured(self._stream)
        yield lambda: self._world._replay(self._stream, graph)
        self._world._destroy(graph)

    def write(self, values: torch.Tensor) -> torch.Tensor:
        return self.fill(self.empty(tuple(values.shape), values.dtype), values)

    def fill(self, there: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        done = self._world._copy(self.index, self._stream, values.data_ptr(), there.data_ptr(), values.nbytes)
        assert done
        return there

    def read(self, there: torch.Tensor) -> torch.Tensor:
        values = torch.zeros(there.shape, dtype=there.dtype)
        done = self._world._copy(self.index, self._stream, there.data_ptr(), values.data_ptr(), values.nbytes)
        assert done
        return values
