"""A PostgreSQL that keeps nothing more: the disk of its tables or of its log is full, or it says that it may not. Whoever wants something
kept is told which place refuses and why; plans go on; nothing that was acknowledged is lost; and all is kept again afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import subprocess
import tempfile
import urllib.request

from cluster import Cluster, Jobs, Replica
from cluster_scenarios import ctl
from harness import Caller, Key, Reference, expect
from live_postgres import Postgres, postgres
from small_disk import Disk
from waiting import wait_for


def tables_without_room(rng: random.Random, say, reference: Reference) -> None:
    with _disk(16) as disk, postgres(within=disk.within) as engine:
        for statement in (f"CREATE TABLESPACE small LOCATION '{disk.path}'", "GRANT CREATE ON TABLESPACE small TO PUBLIC",
                          "ALTER SYSTEM SET default_tablespace = small", "SELECT pg_reload_conf()"):
            engine.run("psql", "-qc", statement)
        _through(rng, say, reference, engine, "No space left on device", disk.fill, disk.free)


def log_without_room(rng: random.Random, say, reference: Reference) -> None:
    """The engine ends: without its log it can do nothing."""
    with _disk(8) as disk, postgres(within=disk.within, initdb=("--wal-segsize=1", "-X", f"{disk.path}/log")) as engine:
        for statement in ("ALTER SYSTEM SET min_wal_size = '2MB'", "ALTER SYSTEM SET max_wal_size = '4MB'", "SELECT pg_reload_conf()"):
            engine.run("psql", "-qc", statement)
        _through(rng, say, reference, engine, "cannot connect", disk.fill, lambda: [disk.free(), engine.runs() or engine.start()])


def writing_forbidden(rng: random.Random, say, reference: Reference) -> None:
    with postgres() as engine:
        def may(write: str) -> None:
            preposition = "FROM" if write == "REVOKE" else "TO"
            engine.run("psql", "-qd", "bucketd", "-c", f"{write} INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public {preposition} bucketd")

        _through(rng, say, reference, engine, "permission denied", lambda: may("REVOKE"), lambda: may("GRANT"))


@contextlib.contextmanager
def _disk(mib: int):
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        os.chmod(folder, 0o755)  # the engine is another user's
        with Disk(pathlib.Path(folder), mib, user="postgres") as disk:
            yield disk


def _through(rng: random.Random, say, reference: Reference, engine: Postgres, why: str, begin, end) -> None:
    with Cluster(engine=engine) as cluster:
        with Jobs(cluster, rng) as load:
            load.wait_for_more(9)  # each job's three plans are kept
            kept = dict(load.plans)
            begin()
            asked = _ask_until_all_say(why, cluster, reference)
            load.wait_for_more(6)
            refused = _import(cluster.replicas[0].address)
            expect("postgres://bucketd@127.0.0.1" in refused and why in refused, "who wants something kept is told:", refused)
            for replica in cluster.replicas:
                caller = Caller(replica.address)
                expect(all(caller.cached(key).plan == plan for key, plan in kept.items()), "a hit that fails")
                caller.close()
            say(f"{asked} plans until all replicas said it; {cluster.metric('bucketd_agreements_unpinned_total'):.0f} agreements without a pin")
            end()
            load.wait_for_more(24)  # each job's plans are kept again
            expect(_import(cluster.replicas[0].address) == "", "it is not kept again")
            wait_for(lambda: not any(map(_trouble, cluster.replicas)), "all to be well")
        cluster.replicas[0].server.kill()  # so that the store alone has them there
        cluster.replicas[0].come_back()
        load.check(reference)


def _ask_until_all_say(why: str, cluster: Cluster, reference: Reference) -> int:
    """New plans, each of which is answered as it should be."""
    plans: dict[Key, bytes] = {}
    while not all(why in _trouble(replica) for replica in cluster.replicas):
        expect(len(plans) < 1000, "nothing is kept, and nobody notices:", *map(_trouble, cluster.replicas))
        key = Key(12, 800 + 8 * len(plans), 0)
        caller = Caller(cluster.replicas[len(plans) % len(cluster.replicas)].address)
        plans[key] = caller.ask(key, 30, inline=True).plan
        caller.close()
    reference.check(plans, "made while nothing was kept")
    return len(plans)


def _trouble(replica: Replica) -> str:
    with urllib.request.urlopen(f"http://{replica.server.http}/statusz?format=json", timeout=30) as answer:
        store = json.load(answer)["store"]
    return store.get("writing", {}).get("why", "")


def _import(address: str) -> str:
    """Costs, again and again, until that is refused, and how; "": all were kept."""
    shown = json.loads(ctl(address, "costs", "show", "slow_network", "--json"))
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        path = pathlib.Path(folder, "profile.json")
        for number in range(40):
            path.write_text(json.dumps({**shown, "gamma_us": 1.5 + number, "about": f"{number} " * 200}))
            try:
                ctl(address, "costs", "import", str(path), "--name", "wanted", "--json")
            except subprocess.CalledProcessError as refused:
                return refused.stderr
    return ""


REFUSALS = [tables_without_room, log_without_room, writing_forbidden]
