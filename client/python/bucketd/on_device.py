"""What the executor needs of the device that buckets are on: of host memory, and of this process's GPU.

The GPU's part passes torch's own things to the library (the current stream, communicators to split, memory of a pool) and is
thin: gpu_agent/README.md says what has been shown of it on a GPU, and what on simulated ones.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import pathlib
import secrets
import shutil
import tempfile
import weakref

import torch
from torch.utils._python_dispatch import _disable_current_modes

from . import bucket_library as library
from .agreement import await_key
from .embedded import locked, node_identity, remove_stale, run_folder
from .errors import ExecutorError, PlannerError
from .mesh import ranks_per_node
from .telemetry import resident

log = logging.getLogger("bucketd")
_ALIGNMENT = 4096  # of the arena
_ORDER = "NCCL_LAUNCH_ORDER_IMPLICIT"
_PREFIX = "bx-"  # of the folders where ranks meet


def aligned(size: int, device: torch.device) -> torch.Tensor:
    """Bytes with an address, also for who compiles: there torch's modes give tensors that have none."""
    with _disable_current_modes():
        whole = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=device)
        return whole[-whole.data_ptr() % _ALIGNMENT:][:size]


def of(device_type: str):
    """A Host, or a Gpu, by the type of the step's meshes."""
    return Gpu() if device_type == "cuda" else Host()


class Host:
    type = "cpu"
    index = -1  # what the library calls it

    def stream(self) -> None:
        return None

    def settle(self) -> None:
        """Until all that this rank has launched is done."""

    def together(self, scope: str, agreement):
        return contextlib.nullcontext()

    def arena(self, size: int) -> None:
        """The library's own."""
        return None

    def communicator(self, group) -> None:
        return None

    def ranks_here(self, group, rank: int) -> int:
        return group.size

    def memory(self) -> tuple[int, int]:
        """The most that this process took so far, and what it takes."""
        return resident()

    def meeting_place(self, scope: str, agreement, timeout: float, planner, plan: bytes) -> tuple[str, str]:
        """A folder of this user alone, and a secret. The leader makes the folder, and the others hear of it through the store;
        the secret is the planner's, for whoever holds the same plan. Without a planner it comes through the store as well:
        who reads that reads the secret, and still has to be this user on this host to get to the ring."""
        if agreement.store is None:
            return _new_place(agreement)["folder"], secrets.token_hex(32)
        key = f"{scope}/executor"
        agreement.store.set(f"{key}/{agreement.rank}", node_identity())
        if agreement.leader:
            nodes = {_hear(agreement, f"{key}/{rank}", rank, timeout) for rank in agreement.ranks}
            if len(nodes) > 1:
                found = {"error": f"the ranks run on {len(nodes)} hosts; on the CPU the executor serves one"}
            else:
                found = _new_place(agreement)
                if planner is None:
                    found["token"] = secrets.token_hex(32)
            agreement.store.set(key, json.dumps(found))
        else:
            found = json.loads(_hear(agreement, key, agreement.ranks[0], timeout))
        if "error" in found:
            raise ExecutorError(found["error"])
        if planner is None:
            return found["folder"], found["token"]
        try:
            met = planner.rendezvous(
                f"executor/{found['group']}", agreement.ranks.index(agreement.rank), len(agreement.ranks),
                f"unix:{found['folder']}", plan, timeout)
        except PlannerError as error:
            raise ExecutorError(f"no secret from the planner: {error}") from error
        return found["folder"], met.token.hex()


class Gpu:
    type = "cuda"

    def __init__(self):
        self.index = torch.cuda.current_device()

    def stream(self) -> int:
        return torch.cuda.current_stream(self.index).cuda_stream

    def settle(self) -> None:
        """Until all that this rank has launched is done, on torch's communicators too: NCCL splits none on which operations are
        outstanding."""
        torch.cuda.synchronize(self.index)

    @contextlib.contextmanager
    def together(self, scope: str, agreement):
        """What is behind this is collective, and would wait to the timeout for a rank that does not come: one that fails in here, or has
        another NCCL or order of launches than the others, is an error on each, with its number. What they have launched before has
        ended on all of them."""
        scope = f"{scope}/arena"
        try:
            yield
            self.settle()
        except Exception as error:
            agreement.fail(scope, error)
            raise
        order = self._launch_order()
        agreement.agree(scope, {"NCCL": self._nccl(), _ORDER: order})
        if agreement.leader and order != "1":
            _want_one_order()

    def arena(self, size: int) -> torch.Tensor:
        try:
            return self._allocate(size)
        except RuntimeError as error:  # torch.OutOfMemoryError, and what else a device says
            raise ExecutorError(
                f"GPU {self.index} has no {size} bytes for the plan's buckets ({str(error).splitlines()[0]}); plan with a "
                'lower memory_limit, or without executor="bucketd"') from error

    def _allocate(self, size: int) -> torch.Tensor:
        """Of torch's own memory, which lets go of what it caches before it says that there is none. NCCL's allocator, which not all GPUs
        have, would be for windows: gpu_agent/decisions/0002."""
        return aligned(size, torch.device("cuda", self.index))

    def communicator(self, group) -> int:
        """torch's, of which the library takes a child."""
        found = self._backend(group.name)._comm_ptr()
        if not found:
            raise ExecutorError(f"group {group.name} has no communicator yet: give init_process_group(device_id=...), or run a collective")
        return found

    def ranks_here(self, group, rank: int) -> int:
        here = ranks_per_node()
        return sum(other // here == rank // here for other in group.ranks)

    def memory(self) -> tuple[int, int]:
        return torch.cuda.max_memory_allocated(self.index), torch.cuda.memory_allocated(self.index)

    def meeting_place(self, scope: str, agreement, timeout: float, planner, plan: bytes) -> tuple[str, str]:
        """A name that this run's ranks have alone. Nobody meets there: torch's communicators know all ranks."""
        key = f"{scope}/executor"
        if agreement.store is None:
            return secrets.token_hex(8), ""
        if agreement.leader:
            agreement.store.set(key, secrets.token_hex(8))
        return _hear(agreement, key, agreement.ranks[0], timeout).decode(), ""

    def _nccl(self) -> str:
        """The one that is in this process: what torch says is the one that it was built with."""
        return library.nccl()

    def _launch_order(self) -> str:
        return "1" if os.environ.get(_ORDER) == "1" else "not set"

    def _backend(self, name):
        from torch.distributed import distributed_c10d as c10d

        backend = c10d._resolve_process_group(name)._get_backend(torch.device("cuda", self.index))
        return getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL puts one around it


@functools.cache
def _want_one_order() -> None:
    """Once: torch's communicators and those split off them have kernels that nothing else orders, and ranks that launch them in two orders
    may wait for each other."""
    log.warning("bucketd: %s=1 is not set (NCCL 2.26 or newer has it): collectives that torch.distributed runs beside the executor's "
                "buckets may hang the job; set it on all ranks before they start", _ORDER)


def _hear(agreement, key: str, rank: int, timeout: float) -> bytes:
    return await_key(agreement.store, key, timeout, f"rank {rank} opened no executor", failure=ExecutorError)


def _new_place(agreement) -> dict[str, str]:
    base = run_folder()
    remove_stale(base, _PREFIX)
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=base)  # 0700 by contract of mkdtemp
    weakref.finalize(agreement, _remove, folder, os.getpid(), locked(pathlib.Path(folder) / "lock"))
    return {"folder": folder, "group": secrets.token_hex(8)}


def _remove(folder: str, owner: int, lock) -> None:
    """`lock` is held until then."""
    if os.getpid() == owner:  # a forked child owns nothing
        shutil.rmtree(folder, ignore_errors=True)
    lock.close()
