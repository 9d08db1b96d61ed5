"""The Slurm prolog, run as slurmd runs it: it measures once, and no job is held up or lost by it."""

import json
import pathlib
import subprocess

import pytest
from live_agents import BINARY
from planners import planner

PROLOG = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "prolog.sh"


@pytest.fixture
def prolog(tmp_path):
    """prolog(planner's address, more settings): starts one."""
    def start(address: str, **settings: str) -> subprocess.Popen:
        settings = {"PLANNER": address, "BACKEND": "ring", "MORE": '"--max-bytes 16384"', "RETRY_HOURS": "0", **settings}
        written = tmp_path / "written.env"
        written.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        written.rename(tmp_path / "prolog.env")  # whole, for one that is just reading it
        environment = {"PATH": "/usr/bin:/bin", "BUCKET_AGENT": str(BINARY), "BUCKETD_PROLOG_ENV": str(tmp_path / "prolog.env"),
                       "BUCKETD_PROLOG_STATE": str(tmp_path / "state"), "SLURM_JOB_ID": "1"}
        return subprocess.Popen([PROLOG], env=environment, stderr=subprocess.PIPE, text=True, cwd="/")

    return start


def ended(process: subprocess.Popen) -> str:
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 0, said
    return said


def versions(address: str) -> list[int]:
    done = subprocess.run([BINARY.with_name("bucketctl"), "costs", "list", "--server", address, "--json"], capture_output=True, text=True, check=True)
    return [int(one["version"]) for one in json.loads(done.stdout)["profiles"] if one["name"] == "prolog"]


def test_a_node_is_measured_once_however_many_jobs_begin_there(prolog):
    with planner() as one:
        at_once = [prolog(one.address) for _ in range(3)]
        assert sorted(bool(ended(each)) for each in at_once) == [False, False, True]
        assert ended(prolog(one.address)) == "" and versions(one.address) == [1]
        assert "measured, for" in ended(prolog(one.address, EVERY_HOURS="0")) and versions(one.address) == [1, 2]


def test_a_job_begins_though_nothing_can_be_measured(prolog, tmp_path):
    said = ended(prolog(f"unix:{tmp_path}/nobody"))
    assert "not measured, exit code" in said and "the job begins all the same: " in said and "nobody" in said
    assert "PLANNER is not set in" in ended(prolog(""))
    with planner() as one:
        stuck = tmp_path / "stuck"
        stuck.write_text("#!/bin/sh\nexec sleep 60\n")
        stuck.chmod(0o700)
        assert "not measured, exit code 124" in ended(prolog(one.address, LIMIT="1", BUCKET_AGENT=str(stuck)))
        assert ended(prolog(one.address, RETRY_HOURS="1")) == "", "what failed is not tried at each job's start"
        assert "measured, for" in ended(prolog(one.address)), "what failed is tried again"


@pytest.mark.parametrize("settings", [{"MORE": '"--name $NOBODY_SET_IT"'}, {"MORE": "x; set -e; false"}, {"EVERY_HOURS": "a day"}])
def test_settings_that_are_no_good_take_no_node_away(prolog, settings):
    ended(prolog("nobody:1", BUCKET_AGENT="/bin/false", **settings))


def test_the_agent_hears_of_what_the_settings_say(prolog, tmp_path):
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\necho "it is $BUCKETD_CLIENT_CA" >&2\nexit 7\n')
    agent.chmod(0o700)
    assert "exit code 7; the job begins all the same: it is /etc/ca.pem" in ended(prolog("nobody:1", BUCKET_AGENT=str(agent), BUCKETD_CLIENT_CA="/etc/ca.pem"))
