"""How often a server, and a replica, goes to PostgreSQL for a hit, a cold plan and the start of a job: what a bench prints is held here."""

import pathlib
import subprocess
import sys

from live_postgres import postgres

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import engine_trips  # noqa: E402


def test_no_call_takes_more_trips_to_postgres_than_wanted(tmp_path_factory, tmp_path):
    with postgres() as engine:
        subprocess.run(["createuser", "bucketd"], env=engine.environment, check=True)
        found = list(engine_trips.counted(engine, tmp_path))
    assert len(found) == len(engine_trips.WANTED) + len(engine_trips.AT_A_REPLICA)
    assert [what for what, count, wanted in found if count > wanted + engine_trips.BEYOND] == [], found
