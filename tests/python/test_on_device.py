"""What ranks on GPUs tell each other before the executor opens, with stand-ins for torch's memory and its NCCL."""

import concurrent.futures

import pytest
import torch
import torch.distributed as dist

from bucketd.agreement import Agreement
from bucketd.errors import AgreementError, BucketdError, ExecutorError
from bucketd.on_device import Gpu

WORLD = 3
SIZE = 3 << 30


class Rank(Gpu):
    """A rank's GPU that is not there."""

    def __init__(self, index, memory=80 << 30, nccl="2.30.4"):
        self.index, self._memory, self._version = index, memory, nccl

    def _allocate(self, size):
        if size > self._memory:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.\nand more")
        return torch.empty(0)

    def _nccl(self):
        return self._version


def arenas(*devices):
    """What each rank gets, or its error."""
    store = dist.HashStore()

    def one(rank):
        agreement = Agreement(dist.PrefixStore("job", store), rank, range(WORLD), deadline=20)
        try:
            return devices[rank].arena(SIZE, "0/fw#1", agreement)
        except BucketdError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(one, range(WORLD)))


def test_all_ranks_have_an_arena():
    assert all(isinstance(got, torch.Tensor) for got in arenas(Rank(0), Rank(1), Rank(2)))


@pytest.mark.parametrize("poor", range(WORLD))
def test_a_rank_without_memory_is_told_what_to_do_and_the_others_who_it_is(poor):
    got = arenas(*(Rank(rank, memory=1 << 20 if rank == poor else 80 << 30) for rank in range(WORLD)))
    for rank, error in enumerate(got):
        assert isinstance(error, ExecutorError if rank == poor else AgreementError)
        assert f"GPU {poor} has no {SIZE} bytes for the plan's buckets (CUDA out of memory. Tried" in str(error)
        assert "memory_limit" in str(error) and "and more" not in str(error)
        assert rank == poor or f"rank {poor}: " in str(error)


def test_ranks_with_other_nccls_are_named():
    got = arenas(Rank(0), Rank(1, nccl="2.28.9"), Rank(2))
    assert all(isinstance(error, AgreementError) for error in got)
    assert all("NCCL: 2.30.4 on ranks 0, 2, 2.28.9 on rank 1" in str(error) for error in got), got
