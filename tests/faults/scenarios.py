"""What goes wrong, one function each. A scenario takes its random numbers from `rng` alone, says what it does through
`say`, and raises Finding where the server did what it must never do."""

from __future__ import annotations

import concurrent.futures
import pathlib
import random
import signal
import socket
import struct
import tempfile
import threading
import time

import grpc
from harness import SLACK, Caller, Finding, Key, Load, Reference, Server, expect, flags_known, random_key, reason_of, victim

from bucketd._wire.proto import planner_pb2
from bucketd.client import PlannerClient

_CHECKED = 60  # acknowledged plans looked at after a kill


def store_flags(folder: str) -> list[str]:
    return ["--store-dir", f"{folder}/store"] if "--store-dir" in flags_known() else []


def kill_server(rng: random.Random, say, reference: Reference) -> None:
    """kill -9 at random points under load: what was answered is answered again, with the same bytes."""
    pauses = [round(rng.uniform(0.1, 0.7), 3) for _ in range(3)]
    say(f"kill -9 after {pauses} s of load each")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        flags = store_flags(folder)
        with Server(*flags, folder=folder) as server:
            everything: dict[Key, bytes] = {}
            for pause in pauses:
                with Load(server.address, rng) as load:
                    time.sleep(pause)
                    server.kill()
                    acknowledged = load.snapshot()
                    server.start()
                    _check_after_restart(rng, server, acknowledged, durable=bool(flags))
                    load.wait_for_more(8)  # the callers come back
                everything |= load.acknowledged
            say(f"{len(everything)} plans acknowledged, peak {server.peak_mib:.0f} MiB, store: {'yes' if flags else 'no'}")
        expect(everything, "there was no load")
        reference.check(everything, "after kills")


def _check_after_restart(rng, server, acknowledged, durable: bool) -> None:
    caller = Caller(server.address)
    grpc.channel_ready_future(caller.channel).result(30)
    for key in rng.sample(sorted(acknowledged, key=repr), min(_CHECKED, len(acknowledged))):
        if durable:
            found = caller.cached(key)
            expect(found is not None, "an acknowledged plan was lost:", key)
        else:
            found = caller.ask(key, 30, inline=True)
        expect(found.plan == acknowledged[key], "another plan after a restart:", key)
    caller.close()


def kill_leader(rng: random.Random, say, reference: Reference) -> None:
    """The client whose request started a computation is killed; those who joined get their plan."""
    key = Key(rng.randint(1500, 2500), 8 * rng.randint(1, 1000), rng.randrange(6))
    pause = round(rng.uniform(0, 0.06), 4)
    say(f"a graph of {6 * key.layers} nodes and more, its leader killed {pause} s after it asked")
    with Server() as server, tempfile.TemporaryDirectory() as folder:
        caller = Caller(server.address)
        caller.stub.UploadGraph(key.model.parts(""), timeout=60)
        path = pathlib.Path(folder, "request")
        path.write_bytes(key.request().SerializeToString())
        with victim(server.address, "ask", str(path)) as leader:
            expect(leader.stdout.readline() == "asked\n", "the leader did not ask")
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                followers = [pool.submit(Caller(server.address).ask, key, 60) for _ in range(6)]
                time.sleep(pause)
                leader.send_signal(signal.SIGKILL)
                plans = {follower.result().plan for follower in followers}
        reference.check(dict.fromkeys([key], plans.pop()), "its leader was killed")
        expect(not plans, "followers got different plans")
        server.eventually("bucketd_waiting_callers", 0)
        expect(server.metric("bucketd_plan_computations_total") == 1, "more than one computation")
        caller.close()


def kill_uploader(rng: random.Random, say, reference: Reference) -> None:
    """The client that was asked for a graph is killed in the middle of sending it: the next one is asked at once, and may
    go on where the dead one stopped."""
    key = Key(rng.randint(300, 600), 8 * rng.randint(1, 1000), rng.randrange(6))
    chunk = rng.choice([1000, 4096, 10_000])
    parts = [message.SerializeToString() for message in key.model.parts("", chunk)]
    sent = rng.randint(2, len(parts) - 1)
    say(f"killed after {sent - 1} of {len(parts) - 1} chunks of {chunk} bytes")
    with Server("--upload-lease-ms", "600000", "--upload-stall-ms", "600000") as server, tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "messages")
        path.write_bytes(b"".join(struct.pack("<I", len(m)) + m for m in parts))
        caller = Caller(server.address)
        expect(caller.stub.GetPlan(key.request(), timeout=30).HasField("graph_required"), "nobody was asked for the graph")
        with victim(server.address, "upload", str(path), str(sent)) as uploader:
            expect(uploader.stdout.readline() == "sent\n", "the upload did not begin")
            expected = min((sent - 1) * chunk, len(key.model.plain))
            server.eventually("bucketd_upload_received_bytes_total", expected)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                held = pool.submit(caller.stub.GetPlan, key.request(), timeout=60)
                server.eventually("bucketd_waiting_callers", 1)
                begin = time.monotonic()
                uploader.send_signal(signal.SIGKILL)
                expect(held.result().HasField("graph_required"), "the next caller was not asked")
                expect(time.monotonic() - begin < SLACK, "the next caller was asked late")
        query = planner_pb2.QueryUploadRequest(graph_digest=key.model.digest, content_sha256=key.model.content)
        committed = caller.stub.QueryUpload(query, timeout=30).committed_size
        expect(committed == expected, f"{committed} bytes are held and not {expected}")
        caller.stub.UploadGraph(key.model.parts("", chunk, committed), timeout=60)
        expect(server.metric("bucketd_upload_received_bytes_total") == len(key.model.plain), "bytes came twice")
        reference.check({key: caller.ask(key, 30).plan}, "its graph came in two parts")
        server.eventually("bucketd_upload_reserved_bytes", 0)
        caller.close()


class _StallingProxy:
    """A unix socket in front of another that passes on `limit` bytes a connection and direction and then no more, without
    ever closing: a peer that is half open."""

    def __init__(self, folder: str, target: str, limits: tuple[int, int]):
        self.address = f"unix:{folder}/proxy-{limits[0]}-{limits[1]}"
        self._target, self._limits = target.removeprefix("unix:"), limits
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address.removeprefix("unix:"))
        self._listener.listen(64)
        self._sockets = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._target)
            self._sockets += [near, far]
            for source, sink, limit in ((near, far, self._limits[0]), (far, near, self._limits[1])):
                self._threads.append(threading.Thread(target=self._pass, args=(source, sink, limit)))
                self._threads[-1].start()

    @staticmethod
    def _pass(source, sink, limit: int) -> None:
        try:
            while limit > 0 and (data := source.recv(min(limit, 4096))):
                sink.sendall(data)
                limit -= len(data)
        except OSError:
            pass

    def close(self) -> None:
        for one in self._sockets:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()
        for thread in self._threads:
            thread.join(10)


def slow_clients(rng: random.Random, say, reference: Reference) -> None:
    """Clients that stop sending, stop reading, or never say anything: the others notice nothing, and memory has a bound."""
    to_server, to_client = rng.randint(600, 60_000), rng.randint(0, 20_000)
    say(f"half-open after {to_server} bytes to the server, or {to_client} to the client")
    key = Key(400, 8 * rng.randint(1, 1000), 0)
    with Server("--upload-stall-ms", "400", "--upload-lease-ms", "400", "--max-inline-bytes", "0", rss_mib=500) as server, \
            tempfile.TemporaryDirectory(prefix="faults-") as folder:
        silent = [_raw(server.address, start) for start in
                  (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x20\x01", b"GET / HTTP/1.1\r\n\r\n",
                   rng.randbytes(500))
                  for _ in range(10)]
        mute = _StallingProxy(folder, server.address, (to_server, 1 << 40))
        deaf = _StallingProxy(folder, server.address, (1 << 40, to_client))
        callers = [Caller(proxy.address) for proxy in (mute, deaf) for _ in range(8)]
        try:
            with concurrent.futures.ThreadPoolExecutor(len(callers)) as pool:
                stuck = [pool.submit(_ask_or_fail, caller, key, 3.0) for caller in callers]
                with Load(server.address, rng, callers=2, tolerated=("OVERLOADED", "GRAPH_TOO_LARGE")) as load:
                    for call in stuck:
                        call.result(3.0 + SLACK)
                expect(load.answers > 0, "nobody else was answered:", load.errors[:5])
            server.watch()
            server.eventually("bucketd_uploads_in_flight", 0)
            server.eventually("bucketd_waiting_callers", 0)
        finally:
            for caller in callers:
                caller.close()
            mute.close()
            deaf.close()
            for one in silent:
                one.close()
        say(f"{load.answers} answers to others meanwhile, peak {server.peak_mib:.0f} MiB")
        server.eventually("bucketd_requests_in_flight", 0)
        reference.check({key: Caller(server.address).ask(key, 30).plan} | load.acknowledged, "beside slow clients")


def _raw(address: str, start: bytes) -> socket.socket:
    one = socket.socket(socket.AF_UNIX)
    one.connect(address.removeprefix("unix:"))
    if start:
        one.send(start)
    return one


def _ask_or_fail(caller: Caller, key: Key, deadline: float) -> None:
    try:
        caller.ask(key, deadline)
    except grpc.RpcError:
        pass  # that it ended is enough


def full_pool(rng: random.Random, say, reference: Reference) -> None:
    """More than the server takes at a time: each call gets its plan or is told to come back, and then gets it."""
    keys = [random_key(rng, widths=1000, layers=(50, 300)) for _ in range(24)]
    say(f"{len(keys)} plans at once for one slot, one place in the queue, four waiting callers and two uploads")
    with Server("--compute-slots", "1", "--compute-queue", "1", "--max-waiting", "4", "--max-uploads", "2") as server:
        callers = [Caller(server.address) for _ in keys]
        refused = 0
        plans: dict[Key, bytes] = {}
        with concurrent.futures.ThreadPoolExecutor(len(keys)) as pool:
            left = dict(zip(keys, callers))
            until = time.monotonic() + 60
            while left:
                expect(time.monotonic() < until, f"{len(left)} callers never got in")
                running = {key: pool.submit(caller.ask, key, 30, inline=i % 2 == 0) for i, (key, caller) in enumerate(left.items())}
                for key, call in running.items():
                    try:
                        plans[key] = call.result().plan
                        del left[key]
                    except grpc.RpcError as error:
                        failure = reason_of(error)
                        expect(failure.reason == "OVERLOADED" and failure.retry_after, "a full server said", failure, error.code())
                        refused += 1
        for caller in callers:
            caller.close()
        say(f"{refused} refusals, all came back")
        expect(refused > 0, "nothing was ever full")
        reference.check(plans, "from a full server")
        server.eventually("bucketd_waiting_callers", 0)
        server.eventually("bucketd_upload_reserved_bytes", 0)


def rolling_restart(rng: random.Random, say, reference: Reference) -> None:
    """A successor listens on the same port, the old server drains: no call of a real client fails."""
    pauses = [round(rng.uniform(0.1, 0.5), 3) for _ in range(3)]
    say(f"successors after {pauses} s each")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        old = Server("--reuse-port", address=address, folder=folder, rss_mib=600)
        servers = [old]
        acknowledged: dict[Key, bytes] = {}
        failures: list[str] = []
        stop = threading.Event()
        count = [0]

        def ask(own: random.Random) -> None:
            client = PlannerClient(address)
            while not stop.is_set():
                key = random_key(own, widths=10, layers=(2, 12))
                client.tenant = key.tenant
                try:
                    request = key.request()
                    reply = client.get_plan(lambda: _graph(key), key.model.digest, request.mesh, request.options, deadline=30)
                    if acknowledged.setdefault(key, reply.plan) != reply.plan:
                        failures.append(f"two plans for {key}")
                    count[0] += 1
                except Exception as error:
                    failures.append(f"{key}: {type(error).__name__}: {error}")
            client.close()

        callers = [threading.Thread(target=ask, args=(random.Random(rng.random()),)) for _ in range(4)]
        with old:
            for caller in callers:
                caller.start()
            try:
                for pause in pauses:
                    time.sleep(pause)
                    with_successor = Server("--reuse-port", address=address, folder=folder).start()
                    servers.append(with_successor)
                    servers[-2].drain()
                time.sleep(pauses[0])
            finally:
                stop.set()
                for caller in callers:
                    caller.join(60)
                for server in servers[1:]:
                    server.__exit__(Finding if failures else None)
        say(f"{count[0]} calls, {len(failures)} failed")
        expect(not failures, f"{len(failures)} calls failed in a rolling restart, the first:", *failures[:3])
        expect(count[0] > 0 and not any(caller.is_alive() for caller in callers), "callers are stuck")
        reference.check(acknowledged, "across a rolling restart")


def _graph(key: Key):
    from bucketd._wire.proto import graph_pb2

    return graph_pb2.Graph.FromString(key.model.plain)


def random_calls(rng: random.Random, say, reference: Reference) -> None:
    """Valid, hostile and damaged messages to every method there is: an answer or an error with a reason, never a crash."""
    import random_messages

    limits = ["--max-graph-bytes", "4194304", "--max-upload-bytes", "16777216", "--max-waiting", "64"]
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, \
            Server(*limits, *store_flags(folder), folder=folder, rss_mib=700) as server:
        key = random_key(rng)
        counts = random_messages.bombard(server, rng, key, rounds=3)
        say(f"{sum(counts.values())} calls of {', '.join(sorted(counts))}")
        server.watch()
        afterwards = Key(3, 24, 0, "afterwards")
        try:
            reference.check({afterwards: Caller(server.address).ask(afterwards, 30, inline=True).plan}, "after random calls")
        except grpc.RpcError as error:  # one of the calls was the operator's switch
            expect(reason_of(error).reason == "PLANNING_DISABLED", "after random calls:", reason_of(error))
        server.drain()


SCENARIOS = [kill_server, kill_leader, kill_uploader, slow_clients, full_pool, rolling_restart, random_calls]
