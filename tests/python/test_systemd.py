"""The unit: what systemd says of it, and that a server speaks its protocol."""

import json
import os
import pathlib
import re
import signal
import socket
import subprocess

import pytest

from bucketd import embedded

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
UNIT = UNITS / "bucketd.service"


@pytest.mark.parametrize("name", ["bucketd", "bucket-agent"])
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path, name):
    binary = pathlib.Path(embedded.find_binary()).with_name(name)
    unit = tmp_path / f"{name}.service"
    unit.write_text((UNITS / unit.name).read_text().replace(f"/usr/bin/{name}", str(binary)))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert done.returncode == 0 and name not in done.stderr, done.stderr


def test_the_agents_unit_takes_what_gpus_need_beside_it(tmp_path):
    binary = pathlib.Path(embedded.find_binary()).with_name("bucket-agent")
    unit, more = tmp_path / "bucket-agent@.service", tmp_path / "bucket-agent@.service.d" / "gpu.conf"
    unit.write_text((UNITS / "bucket-agent.service").read_text().replace("/usr/bin/bucket-agent", str(binary)))
    more.parent.mkdir()

    def said(text):
        more.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(tmp_path / "bucket-agent@3.service")], capture_output=True, text=True)
        return done.returncode, done.stderr

    text = (UNITS / "bucket-agent-gpu.conf").read_text().replace("/usr/bin/bucket-agent", str(binary))
    code, errors = said(text)
    assert code == 0 and "bucket-agent" not in errors, errors
    # What the unit forbids and a GPU needs is named again.
    for key in re.findall(r"^(\w+)=", text, re.MULTILINE):
        assert key in ("DevicePolicy", "DeviceAllow", "LimitMEMLOCK") or f"\n{key}=" in unit.read_text(), key
    assert "DeviceAlow" in said(text.replace("DeviceAllow", "DeviceAlow"))[1], "systemd did not read it"


def test_an_agent_of_a_gpu_sees_it_and_no_other_device(tmp_path):
    """As systemd has the unit with what stands beside it: each of these hid the GPUs, or ended CUDA's start."""
    (tmp_path / "bucket-agent@.service").write_text((UNITS / "bucket-agent.service").read_text())

    def settings():
        done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--json=short", str(tmp_path / "bucket-agent@3.service")],
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return {each["json_field"]: (each["set"], each["description"]) for each in json.loads(done.stdout)}

    forbidden = ("PrivateDevices", "MemoryDenyWriteExecute", "ProcSubset", "SystemCallFilter_resources")
    alone = settings()
    assert all(alone[name][0] for name in forbidden)
    (tmp_path / "bucket-agent@.service.d").mkdir()
    (tmp_path / "bucket-agent@.service.d" / "gpu.conf").write_text((UNITS / "bucket-agent-gpu.conf").read_text())
    with_gpus = settings()
    assert not any(with_gpus[name][0] for name in forbidden)
    devices = set(with_gpus["DeviceAllow"][1].rpartition(": ")[2].split())
    assert devices == {"char-nvidia*:rw", "char-infiniband*:rw", "char-rtc:r"}, "ProtectClock= adds the last"
    assert {name for name in alone if alone[name][0] != with_gpus[name][0]} == {*forbidden}


def test_the_agents_units_have_their_arguments_from_the_file_beside_them(tmp_path):
    unit, text = (UNITS / "bucket-agent.service").read_text(), (UNITS / "bucket-agent.env").read_text()
    assert "EnvironmentFile=/etc/bucketd/bucket-agent.env" in unit and "\nRuntimeDirectory=bucket-agent\n" in unit
    given = dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))
    binary = pathlib.Path(embedded.find_binary()).with_name("bucket-agent")
    wanted = set()
    for file, who in ((unit, "rank 0 of 2 of nodes"), ((UNITS / "bucket-agent-gpu.conf").read_text(), "rank 3 of 16 of nodes-gpus")):
        command = re.search(r"^ExecStart=/usr/bin/bucket-agent (.*)$", file, re.MULTILINE)[1]
        wanted |= set(re.findall(r"\$\{?(\w+)", command))
        # What trainers take reaches the planner by it; as long as it is empty, which is a word to systemd, by nobody.
        assert "--profile ${PROFILE}" in command and given["PROFILE"] == ""
        arguments = []
        for word in command.replace("%i", "3").replace("--backend nccl", "").split():
            in_braces = re.sub(r"\$\{(\w+)\}", lambda found: given[found[1]], word)
            arguments += given[word[1:]].split() if re.fullmatch(r"\$\w+", word) else [in_braces]
        arguments = [re.sub(r"127\.0\.0\.1:\S+", "127.0.0.1:0", word).replace("eth0", "no-such-interface").replace("/run/bucket-agent", str(tmp_path))
                     for word in arguments]
        done = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and "no-such-interface" in done.stderr and who in done.stdout, done.stdout + done.stderr
    assert wanted == set(given)


def test_the_unit_checks_the_file_that_it_starts_with():
    text = UNIT.read_text()
    assert text.count("--config /etc/bucketd/bucketd.toml") == 2 and "Type=notify" in text


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_the_service_manager_hears_of_ready_and_of_stopping(tmp_path, abstract):
    name = f"bucketd-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name if abstract else name)
        manager.settimeout(60)
        process = subprocess.Popen(
            [embedded.find_binary(), "--listen", f"unix:{tmp_path}/socket", "--http", "", "--lame-duck-ms", "0",
             f"--exit-with-parent={os.getpid()}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "NOTIFY_SOCKET": ("@" if abstract else "") + name})
        try:
            first = manager.recv(4096).decode().splitlines()
            assert first == ["READY=1", f"STATUS=serves on unix:{tmp_path}/socket"]
            process.send_signal(signal.SIGTERM)
            assert manager.recv(4096).decode().splitlines()[0] == "STOPPING=1"
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
            process.wait()
