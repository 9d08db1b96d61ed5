"""Training whose buckets libbucket_executor runs: the bits of torch.distributed's, and what is heard when a rank dies."""

import concurrent.futures
import ctypes
import json
import os
import re

import pytest
import torch.distributed as dist
from planners import planner
from ranks import Ranks, run_ranks

from bucketd import bucket_library
from bucketd.agreement import Agreement
from bucketd.client import PlannerClient
from bucketd.errors import ExecutorError
from bucketd.graph import CollectiveKind, DType, ReduceOp
from bucketd.on_device import Host

WORLD = 4
TIMEOUT = 20.0  # seconds of a bucket


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("bits") / "found.json"
    run_ranks("executor_worker.py", WORLD, "bits", str(TIMEOUT), str(out), timeout=400)
    return json.loads(out.read_text())


@pytest.mark.slow
def test_training_through_the_executor_keeps_every_bit(trained):
    executor, planned = trained["executor"], trained["torch.distributed"]
    assert sorted({kind for kind, _ in executor["runs"]}) == ["all_gather", "reduce_scatter"]
    assert all(ran for _, ran in executor["runs"]), "a bucket did not run on the executor"
    assert all(planned["runners"])
    for what in ("weights", "gradients", "losses"):
        assert executor[what] == trained["unplanned"][what] == planned[what], what


@pytest.mark.slow
def test_what_the_library_refuses_stays_with_torch_and_is_counted(trained):
    """Reduce-scatters here, by a refusal of the test's own: on the CPU there is no dtype and no operation that torch has and the
    library has not."""
    mixed = trained["mixed"]
    for what in ("weights", "gradients", "losses"):
        assert mixed[what] == trained["unplanned"][what], what
    assert dict(mixed["runs"]) == {"all_gather": True, "reduce_scatter": False}
    scatters = sum(kind == "reduce_scatter" for kind, _ in mixed["runs"])
    assert mixed["counted"] == len(mixed["refused"]) == scatters > 0
    assert all(re.fullmatch(r"bucket \d+ \(.*\): no such sum here", text) for text in mixed["refused"])
    assert any(text.startswith("bucketd, but for buckets ") for text in mixed["takes"])


@pytest.mark.slow
def test_a_plan_is_not_followed_over_other_groups_connections(tmp_path):
    out = tmp_path / "meshes.json"
    run_ranks("executor_worker.py", WORLD, "meshes", str(TIMEOUT), str(out), timeout=300)
    found = json.loads(out.read_text())
    assert found["other"] and found["same"] and set(found["takes"]) == {"bucketd"}


def test_the_library_says_what_it_refuses():
    counts = (ctypes.c_int64 * 1)(8)

    def refuses(kind, op, dtype):
        spec = bucket_library.BucketSpec(name=b"b", kind=kind, op=op, dtype=dtype, mode=1, members=1, counts=counts)
        return bucket_library.refuses(-1, spec, 2)

    assert refuses(CollectiveKind.REDUCE_SCATTER, ReduceOp.AVG, DType.BF16) == ""
    assert refuses(CollectiveKind.ALL_GATHER, ReduceOp.NONE, DType.F8_E4M3) == ""
    assert re.search("reduce_scatter .* i32: the dtype has no reduce op avg", refuses(CollectiveKind.REDUCE_SCATTER, ReduceOp.AVG, DType.I32))
    assert "expected all_gather" in refuses(CollectiveKind.BROADCAST, ReduceOp.NONE, DType.F32)


@pytest.mark.slow
def test_backends_that_are_gone_leave_no_threads_though_pytorch_keeps_what_they_compiled(tmp_path):
    out = tmp_path / "gone.json"
    run_ranks("executor_worker.py", 2, "gone", str(TIMEOUT), str(out), timeout=200)
    found = json.loads(out.read_text())
    assert found["left"] == 0 and found["threads"][-1] < found["threads"][0] + 4, found


@pytest.mark.slow
def test_a_forked_child_ends_as_usual_and_its_parent_trains_on(tmp_path):
    out = tmp_path / "forked.json"
    run_ranks("executor_worker.py", 2, "forked", str(TIMEOUT), str(out), timeout=200)
    assert json.loads(out.read_text()) == {"child": 3}


@pytest.mark.slow
def test_a_rank_that_is_killed_is_an_error_for_the_others_and_they_start_again(tmp_path):
    out = tmp_path / "killed"
    with Ranks("executor_worker.py", WORLD, "killed", str(TIMEOUT), str(out)) as ranks:
        ended = [status for status, _ in ranks.wait(timeout=240, grace=60)]
    assert ended == [7, 7, -9, 7]
    for rank in (0, 1, 3):
        heard = json.loads(out.with_suffix(f".{rank}").read_text())
        assert heard["seconds"] < TIMEOUT + 10 and "bucket " in heard["said"], heard
    # Nothing is left that keeps a new run from starting.
    run_ranks("executor_worker.py", WORLD, "starts", str(TIMEOUT), str(tmp_path / "again"), timeout=300)


def places(store, address, plans):
    """What each rank, a thread, gets as folder and secret, or its error."""

    def meet(rank):
        agreement = Agreement(dist.PrefixStore("job", store), rank, range(len(plans)))
        client = PlannerClient(address) if address else None
        try:
            # The folder lives as long as the agreement.
            return agreement, *Host().meeting_place("0/fw", agreement, 20.0, client, plans[rank])
        except ExecutorError as error:
            return agreement, "", str(error)

    with concurrent.futures.ThreadPoolExecutor(len(plans)) as pool:
        return list(pool.map(meet, range(len(plans))))


def test_the_secret_is_the_planners_and_the_store_never_sees_it():
    store = dist.HashStore()
    with planner() as one:
        met = places(store, one.address, [b"plan"] * 3)
    (_, folder, token), *others = met
    assert re.fullmatch("[0-9a-f]{64}", token) and all(place[1:] == (folder, token) for place in others)
    assert json.loads(store.get("job/0/fw/executor"))["folder"] == folder
    assert token.encode() not in store.get("job/0/fw/executor")


def test_ranks_with_different_plans_get_no_secret():
    with planner() as one:
        met = places(dist.HashStore(), one.address, [b"plan", b"other"])
    assert any("RENDEZVOUS_DIFFERS" in said for *_, said in met), met
    assert not any(folder for _, folder, _ in met)


def test_without_a_planner_the_leader_makes_the_secret():
    met = places(dist.HashStore(), "", [b"plan"] * 2)
    assert met[0][1:] == met[1][1:] and re.fullmatch("[0-9a-f]{64}", met[0][2])


def test_what_killed_runs_left_is_removed_and_what_is_in_use_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    killed = tmp_path / "bx-killed"
    killed.mkdir()
    (killed / "lock").touch()
    first = Agreement(None, 0, [0])
    in_use, _ = Host().meeting_place("0/fw", first, 1.0, None, b"")
    for folder in (killed, in_use):
        os.utime(folder, (0, 0))
    second = Agreement(None, 0, [0])
    new, _ = Host().meeting_place("0/bw", second, 1.0, None, b"")
    assert {str(folder) for folder in tmp_path.iterdir()} == {in_use, new}
    del first, second
    assert not list(tmp_path.iterdir())


def test_a_library_that_is_none_is_an_error_that_names_it(monkeypatch, tmp_path):
    wrong = tmp_path / "libwrong.so"
    wrong.write_bytes(b"not a library")
    monkeypatch.setenv("BUCKETD_EXECUTOR", str(wrong))
    bucket_library.load.cache_clear()
    try:
        with pytest.raises(ExecutorError, match="libwrong.so.*BUCKETD_EXECUTOR"):
            bucket_library.load()
    finally:
        bucket_library.load.cache_clear()


def test_a_library_of_another_interface_is_an_error_that_names_both(monkeypatch):
    bucket_library.load.cache_clear()
    monkeypatch.setattr(bucket_library, "ABI", bucket_library.ABI - 1)
    with pytest.raises(ExecutorError, match=rf"{bucket_library.find()} has interface 7, this client speaks 6"):
        bucket_library.load()
