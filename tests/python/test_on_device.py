"""Buckets on GPUs as the Python client runs them: what ranks tell each other before the executor opens, with stand-ins for torch's memory
and its NCCL, and steps on simulated GPUs, where torch's tensors are memory that only the devices may touch. Runs that end in their midst, on the
host as well."""

import concurrent.futures
import gc
import itertools
import os
import time
import types

import pytest
import torch
import torch.distributed as dist
from device_buckets import graph_and_plan, shapes
from simulated_gpus import MODULE, RANKS, SimulatedGpu
from simulated_gpus import World as SimulatedWorld
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode

from bucketd import executor, mesh, on_device
from bucketd.agreement import Agreement
from bucketd.errors import AgreementError, BucketdError, ExecutorError
from bucketd.graph import DType
from bucketd.on_device import Gpu, Host

WORLD = 3
SIZE = 3 << 30


class Rank(Gpu):
    """A rank's GPU that is not there."""

    error = torch.OutOfMemoryError

    def __init__(self, index, memory=80 << 30, nccl="2.30.4", order="1"):
        self.index, self._memory, self._version, self._order = index, memory, nccl, order

    def _allocate(self, size):
        if size > self._memory:
            raise self.error(f"CUDA out of memory. Tried to allocate {size} bytes.\nand more")
        return torch.empty(0)

    def settle(self):
        pass

    def _nccl(self):
        return self._version

    def _launch_order(self):
        return self._order if self._order is not None else super()._launch_order()


def arenas(*devices, then=lambda: None):
    """What each rank gets, or its error. They do `then` next."""
    store = dist.HashStore()

    def one(rank):
        agreement = Agreement(dist.PrefixStore("job", store), rank, range(WORLD), deadline=20)
        try:
            with devices[rank].together("0/fw#1", agreement):
                arena = devices[rank].arena(SIZE)
            then()
            return arena
        except BucketdError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(one, range(WORLD)))


def test_all_ranks_have_an_arena():
    assert all(isinstance(got, torch.Tensor) for got in arenas(Rank(0), Rank(1), Rank(2)))


@pytest.mark.parametrize("mode", [FakeTensorMode, FunctionalTensorMode])
def test_an_arena_has_an_address_where_a_compiler_asks_for_it(mode):
    with mode():
        arena = on_device.aligned(3000, torch.device("cpu"))
    assert type(arena) is torch.Tensor and arena.data_ptr() % 4096 == 0 and arena.numel() == 3000


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
@pytest.mark.parametrize("poor", range(WORLD))
def test_a_rank_without_memory_is_told_what_to_do_and_the_others_who_it_is(monkeypatch, poor, error):
    monkeypatch.setattr(Rank, "error", error)
    got = arenas(*(Rank(rank, memory=1 << 20 if rank == poor else 80 << 30) for rank in range(WORLD)))
    for rank, error in enumerate(got):
        assert isinstance(error, ExecutorError if rank == poor else AgreementError)
        assert f"GPU {poor} has no {SIZE} bytes for the plan's buckets (CUDA out of memory. Tried" in str(error)
        assert "memory_limit" in str(error) and "and more" not in str(error)
        assert rank == poor or f"rank {poor}: " in str(error)


def test_no_rank_goes_on_before_what_the_others_have_launched_has_ended(monkeypatch):
    """NCCL splits no communicator on which operations are outstanding."""
    ended = []

    class Busy(Rank):
        def settle(self):
            time.sleep(0.1 * self.index)
            ended.append(self.index)

        def _nccl(self):
            assert self.index in ended
            return super()._nccl()

    def split():
        assert sorted(ended) == list(range(WORLD))

    assert all(isinstance(got, torch.Tensor) for got in arenas(*map(Busy, range(WORLD)), then=split))
    monkeypatch.setattr(torch.cuda, "synchronize", ended.append)
    Gpu.settle(Rank(7))
    assert ended[-1] == 7


def test_ranks_with_other_nccls_are_named():
    got = arenas(Rank(0), Rank(1, nccl="2.28.9"), Rank(2))
    assert all(isinstance(error, AgreementError) for error in got)
    assert all("NCCL: 2.30.4 on ranks 0, 2, 2.28.9 on rank 1" in str(error) for error in got), got


def test_a_ranks_nccl_is_the_one_that_the_library_found(monkeypatch):
    for module, said in (("off", ""), (str(MODULE), "of the simulation")):
        monkeypatch.setenv("BUCKETD_CUDA_MODULE", module)
        assert Gpu._nccl(Rank(0)) == said
    monkeypatch.setattr(executor.library, "_taken", lambda text: "NCCL 2.27.3 (/opt/libnccl.so.2)")
    assert Gpu._nccl(Rank(0)) == "2.27.3"


def test_ranks_with_other_orders_of_launches_are_named(caplog):
    """Whichever of them it is: one that has none may wait for those that have it."""
    for orders in (("1", "not set", "1"), ("not set", "1", "not set")):
        got = arenas(*(Rank(rank, order=order) for rank, order in enumerate(orders)))
        assert all(isinstance(error, AgreementError) for error in got)
        assert all(f"NCCL_LAUNCH_ORDER_IMPLICIT: {orders[0]} on ranks 0, 2, {orders[1]} on rank 1" in str(error) for error in got), got
    assert not caplog.messages


@pytest.mark.parametrize("how, said", [("1", 0), ("0", 1), (None, 1)])
def test_the_leader_wants_one_order_of_launches_once(monkeypatch, caplog, how, said):
    monkeypatch.delenv("NCCL_LAUNCH_ORDER_IMPLICIT", raising=False)
    if how is not None:
        monkeypatch.setenv("NCCL_LAUNCH_ORDER_IMPLICIT", how)
    on_device._want_one_order.cache_clear()
    for _ in range(2):
        arenas(*(Rank(rank, order=None) for rank in range(WORLD)))
    assert sum("NCCL_LAUNCH_ORDER_IMPLICIT=1 is not set" in text for text in caplog.messages) == said


def test_a_group_without_a_communicator_is_told_what_it_wants():
    gpu = Rank(0)
    gpu._backend = lambda name: types.SimpleNamespace(_comm_ptr=lambda: 0)
    with pytest.raises(ExecutorError, match=r"group dp has no communicator yet: give init_process_group\(device_id=...\)"):
        gpu.communicator(types.SimpleNamespace(name="dp"))
    gpu._backend = lambda name: types.SimpleNamespace(_comm_ptr=lambda: 4711)
    assert gpu.communicator(types.SimpleNamespace(name="dp")) == 4711


def test_a_rank_whose_group_has_no_communicator_holds_no_other(monkeypatch):
    def one(rank):
        with pytest.raises(BucketdError) as told:
            Trainer(SimulatedGpu(world, rank), store, rank)
        return told.type, str(told.value)

    def communicator(gpu, group):
        if gpu.index == 1:
            raise ExecutorError(f"group {group.mesh_dim} has no communicator yet")
        return 4711

    monkeypatch.setenv("BUCKETD_CUDA_MODULE", str(MODULE))
    monkeypatch.setattr(on_device, "of", lambda device: device)
    monkeypatch.setattr(SimulatedGpu, "communicator", communicator)
    world, store = SimulatedWorld(1), dist.HashStore()
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(RANKS) as pool:
        first, second = pool.map(one, range(RANKS))
    gc.collect()  # what the errors held is of this world
    assert first[0] is AgreementError and "rank 1: ExecutorError: group dp has no communicator yet" in first[1]
    assert second[0] is ExecutorError
    assert time.monotonic() - begin < 15  # the agreement's deadline is 20


@pytest.mark.parametrize("debug", [None, "DETAIL"])
def test_torchs_checks_of_collectives_do_not_hide_a_communicator(monkeypatch, debug):
    backend = types.SimpleNamespace(_comm_ptr=lambda: 4711)
    around = backend if debug is None else types.SimpleNamespace(wrapped_pg=backend)
    assert hasattr(torch.distributed.distributed_c10d._ProcessGroupWrapper, "wrapped_pg")
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_resolve_process_group", lambda name: types.SimpleNamespace(_get_backend=lambda device: around))
    assert Rank(0).communicator(types.SimpleNamespace(name="dp")) == 4711


def test_ranks_of_this_host_are_counted_as_for_plans(monkeypatch):
    """By the launcher's word; else the job's ranks share one host, however few of them a group has."""
    group = types.SimpleNamespace(ranks=(0, 2, 4, 6))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert [Rank(0).ranks_here(group, rank) for rank in group.ranks] == [2, 2, 2, 2]
    monkeypatch.setattr(mesh, "world_size", lambda: 8)
    for said in (None, "", "0", "many"):
        monkeypatch.delenv("LOCAL_WORLD_SIZE") if said is None else monkeypatch.setenv("LOCAL_WORLD_SIZE", said)
        for ranks in ((0, 1, 2), (0, 2, 4, 6), (0, 4), (5, 7)):
            assert [Rank(0).ranks_here(types.SimpleNamespace(ranks=ranks), rank) for rank in ranks] == [len(ranks)] * len(ranks)


def test_a_process_that_can_use_no_gpu_is_told_so_and_goes_on_with_no_bucket(monkeypatch):
    """Not one refused bucket after the other, of which a rank may go without."""
    monkeypatch.setenv("BUCKETD_CUDA_MODULE", "off")
    monkeypatch.setattr(on_device, "of", lambda device: device)
    graph, plan = graph_and_plan(2)
    with pytest.raises(ExecutorError, match="can use no GPU here: BUCKETD_CUDA_MODULE is off.*BUCKETD_EXECUTOR.*leaves all buckets to torch"):
        executor.Runner(graph, plan, Rank(0), 10.0)


def test_a_device_is_asked_for_once_however_many_buckets_there_are(monkeypatch):
    asked = []
    monkeypatch.setattr(executor.library, "check_device", asked.append)
    graph, plan = graph_and_plan(2, "dp")
    executor.Runner(graph, plan, "cpu", 10.0)
    assert len(plan.buckets) == 3 and asked == [-1]


class HostRank(Host):
    """A rank on the host, as a SimulatedGpu is one on a GPU."""

    def empty(self, shape, dtype):
        return torch.empty(shape, dtype=dtype)

    def write(self, values):
        return values.clone()

    def read(self, there):
        return there


class Trainer:
    """A rank of a trainer on its device, a simulated GPU most often, with the client's own runner."""

    def __init__(self, device, store, rank, timeout=20.0):
        self.rank, self.gpu = rank, device
        self.graph, self.plan = graph_and_plan(RANKS)
        # Each rank is a thread, and a runner asks for its device as it is made.
        self.runner = executor.Runner(self.graph, self.plan, self.gpu, timeout=timeout)
        agreement = Agreement(dist.PrefixStore("job", store), rank, range(RANKS), deadline=20)
        self.runner.open("0/fw#1", agreement, epoch=1)

    def inputs(self, bucket, rank):
        """As that rank has them: small whole numbers, which every order of summing keeps."""
        return [(torch.arange(torch.Size(shape).numel()) % 7 + rank + 3 * at).to(torch_dtype(dtype)).reshape(shape)
                for at, (dtype, shape, _) in enumerate(shapes(self.graph, self.plan, bucket))]

    def expected(self, bucket):
        of_ranks = [self.inputs(bucket, rank) for rank in range(RANKS)]
        kind = self.graph.nodes[self.plan.buckets[bucket].members[0]].op
        for members in zip(*of_ranks):
            whole = torch.cat(members) if kind == "all_gather" else sum(members)
            yield whole.chunk(RANKS)[self.rank] if kind == "reduce_scatter" else whole

    def start(self, bucket):
        """Nobody but the runner holds the tensors."""
        out = [self.gpu.empty(shape, torch_dtype(dtype)) for dtype, _, shape in shapes(self.graph, self.plan, bucket)]
        self.runner.start(bucket, [self.gpu.write(x) for x in self.inputs(bucket, self.rank)], out)

    def step(self, in_order=False):
        buckets = range(len(self.plan.buckets))
        for bucket in buckets if in_order else reversed(buckets):  # the plan's order is the executor's to keep
            self.start(bucket)
        for bucket in buckets:
            results = self.runner.wait(bucket)
            for found, wanted in zip(results, self.expected(bucket), strict=True):
                here = self.gpu.read(found)  # an assertion that fails would read `found` itself
                assert torch.equal(here, wanted), f"bucket {bucket}"

    def broken_step(self, starts, waits):
        """That an exception ends behind so many starts and waits, in the plan's order."""
        for bucket in range(starts):
            self.start(bucket)
        for bucket in range(waits):
            self.runner.wait(bucket)

    def end(self):
        del self.runner
        gc.collect()


def torch_dtype(dtype):
    return {DType.F32: torch.float32, DType.BF16: torch.bfloat16}[dtype]


def on_simulated_gpus(monkeypatch, seed, run, timeout=20.0):
    """What was found; `run` gets each rank's trainer."""
    monkeypatch.setenv("BUCKETD_CUDA_MODULE", str(MODULE))
    monkeypatch.setattr(on_device, "of", lambda device: device)
    world, store = SimulatedWorld(seed), dist.HashStore()

    on_ranks(run, lambda rank: Trainer(SimulatedGpu(world, rank), store, rank, timeout))
    return world.findings()


def on_the_host(monkeypatch, run, timeout=20.0):
    monkeypatch.setattr(on_device, "of", lambda device: device)
    store = dist.HashStore()
    on_ranks(run, lambda rank: Trainer(HostRank(), store, rank, timeout))


def on_ranks(run, trainer_of):
    def one(rank):
        trainer = trainer_of(rank)
        run(trainer)
        trainer.end()

    with concurrent.futures.ThreadPoolExecutor(RANKS) as pool:
        list(pool.map(one, range(RANKS)))


@pytest.mark.parametrize("seed", range(1, 6))
def test_steps_on_simulated_gpus_give_their_bytes_and_race_with_nothing(monkeypatch, seed):
    def run(trainer):
        for _ in range(3):
            trainer.step()
        trainer.runner.check()

    assert on_simulated_gpus(monkeypatch, seed, run) == []


@pytest.mark.parametrize("seed", range(1, 6))
def test_a_captured_step_gives_its_bytes_at_each_replay(monkeypatch, seed):
    def run(trainer):
        gpu, runner, buckets = trainer.gpu, trainer.runner, range(len(trainer.plan.buckets))
        inputs = [[gpu.write(x) for x in trainer.inputs(bucket, trainer.rank)] for bucket in buckets]
        outputs = [[gpu.empty(shape, torch_dtype(dtype)) for dtype, _, shape in shapes(trainer.graph, trainer.plan, bucket)] for bucket in buckets]

        def step():
            for bucket in buckets:
                runner.start(bucket, inputs[bucket], outputs[bucket])
            for bucket in buckets:
                runner.wait(bucket)

        step()
        with gpu.graph(step) as replay:
            for _ in range(3):
                for out in itertools.chain(*outputs):
                    gpu.fill(out, torch.full(out.shape, 77, dtype=out.dtype))
                replay()
                for bucket in buckets:
                    for found, wanted in zip(outputs[bucket], trainer.expected(bucket), strict=True):
                        here = gpu.read(found)
                        assert torch.equal(here, wanted), f"bucket {bucket}"
        runner.check()

    assert on_simulated_gpus(monkeypatch, seed, run) == []


def test_a_runner_that_let_go_of_tensors_in_flight_would_be_found(monkeypatch):
    def run(trainer):
        trainer.start(0)
        trainer.runner._under_way[0] = trainer.runner._under_way[0][0], [], []
        gc.collect()
        trainer.runner.wait(0)

    found = on_simulated_gpus(monkeypatch, 1, run)
    assert any("its free" in one or "a race" in one for one in found), found


def test_what_is_wrong_with_a_start_or_a_wait_names_the_bucket(monkeypatch):
    def run(trainer):
        with pytest.raises(ExecutorError, match=r"bucket 1 \(b1\) is waited for and was not started"):
            trainer.runner.wait(1)
        trainer.start(1)
        with pytest.raises(ExecutorError, match="ended in its midst.* bucket 1 .*waits for its turn"):
            trainer.start(1)  # as of a new run
        with pytest.raises(ExecutorError, match="bucket 1 .*waits for its turn"):
            trainer.runner.wait(1)  # a host would wait; here nothing could ever come before it on this stream
        for bucket in (0, 2):
            trainer.start(bucket)
        for bucket in range(3):
            trainer.runner.wait(bucket)

    assert on_simulated_gpus(monkeypatch, 1, run) == []


def runs_that_end_in_their_midst(trainer):
    """Behind a start; behind a wait, with nothing under way; twice in a row; behind a run that is whole."""
    for starts, waits in ((2, 1), (1, 1), (3, 1), (2, 0)):
        trainer.broken_step(starts, waits)
        if starts != 3:
            trainer.step(in_order=True)
    trainer.step()


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_run_that_ended_in_its_midst_is_followed_by_whole_ones_on_simulated_gpus(monkeypatch, seed):
    assert on_simulated_gpus(monkeypatch, seed, runs_that_end_in_their_midst) == []


def test_a_run_that_ended_in_its_midst_is_followed_by_whole_ones_on_the_host(monkeypatch):
    on_the_host(monkeypatch, runs_that_end_in_their_midst)


def test_executors_that_were_replaced_are_closed(monkeypatch):
    """Each one's threads are, among others."""
    threads = []

    def run(trainer):
        for _ in range(5):
            trainer.broken_step(1, 0)
            if trainer.rank == 0:
                threads.append(len(os.listdir("/proc/self/task")))

    on_the_host(monkeypatch, run)
    assert max(threads) < threads[0] + 12, threads  # one has 4 of its own, and one of each rank may be on its way out


def test_a_rank_that_alone_begins_a_run_anew_is_told_so_and_mixes_nothing_up(monkeypatch):
    """The other one is still in the run that this one left, where the next bucket has the size of the first one of a new run."""

    def run(trainer):
        trainer.broken_step(1, 1)
        said = "0/fw#1: the last run ended in its midst, by an exception on this rank, and another one cannot begin"
        with pytest.raises(ExecutorError, match=said if trainer.rank == 0 else "bucket 1 .*(waited too long for rank 0|did not end within 2s)"):
            trainer.start(trainer.rank)
            trainer.runner.wait(1)

    on_the_host(monkeypatch, run, timeout=2.0)


def test_the_memory_of_a_run_is_all_that_its_graph_takes_and_the_arena(monkeypatch):
    """What comes before the first bucket and behind the last one too: a backward's first gradients, a forward's logits."""

    class Counted(HostRank):
        now = most = 0

        def take(self, count):
            self.now += count
            self.most = max(self.most, self.now)

        def memory(self):
            return self.most, self.now

        def arena(self, size):
            self.take(64)
            return torch.empty(64, dtype=torch.uint8)

    monkeypatch.setattr(on_device, "of", lambda device: device)
    told = []
    monkeypatch.setattr(executor.library.load(), "bucket_executor_peak", lambda handle, most: told.append(most))
    device, (graph, plan) = Counted(), graph_and_plan(1)
    device.take(1000)  # parameters, and the run's inputs
    runner = executor.Runner(graph, plan, device, 20.0, types.SimpleNamespace(report=lambda *given: None, ran=lambda: None), "fw")
    runner.open("0/fw#1", Agreement(None, 0, [0]), 1)
    for _ in range(2):
        runner.begins()
        device.take(500)
        for k in range(3):
            runner.start(k, *([torch.ones(given[side], dtype=torch_dtype(given[0])) for given in shapes(graph, plan, k)] for side in (1, 2)))
        device.take(100)
        for k in range(3):
            runner.wait(k)
        device.take(900)
        device.take(-1500)
        runner.ends()
    inputs = sum(output.bytes for node in graph.nodes if node.op == "placeholder" for output in node.outputs)
    assert told == [inputs + 1500 + 64] * 2


def test_a_bucket_copies_on_the_stream_that_its_plan_says():
    graph, plan = graph_and_plan(2, "dp")
    runner = executor.Runner(graph, plan, "cpu", 10.0)
    assert [runner._spec(k, 0).copies for k in range(3)] == [1, 2, 1]


def test_a_start_says_where_tensors_are_and_refuses_those_of_another_device():
    graph, plan = graph_and_plan(2, "dp")
    runner = executor.Runner(graph, plan, "cpu", 10.0)
    runner._handle = 1  # of no library: it is not called
    with pytest.raises(ExecutorError, match=r"bucket 0 \(b0\) is planned for cpu, of its tensors one is on meta"):
        runner.start(0, [torch.empty(3, 5), torch.empty(7, 2, device="meta")], [])
    tensors = [torch.empty(3, 5), torch.empty(7, 2)]
    told = executor._Tensors(2, int(DType.F32)).of(tensors)
    assert [(one.data, one.elements, one.dtype) for one in told] == [(x.data_ptr(), x.numel(), int(DType.F32)) for x in tensors]
