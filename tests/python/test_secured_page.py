"""deploy/SECURED.md from top to bottom: every command, as it stands but for the ports."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

import pytest

from bucketd import embedded

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "deploy" / "SECURED.md").read_text()
QUICKSTART = PAGE.split("## Five commands")[1].split("\n## ")[0]


def commands(text: str) -> str:
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


def run(script: str, folder: pathlib.Path, timeout: float) -> str:
    """What the commands print; an error of any of them ends the test. Servers end with it."""
    binaries = [str(pathlib.Path(embedded.find_binary()).parent), str(pathlib.Path(sys.executable).parent)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BUCKETD_")}
    environment.update(PATH=os.pathsep.join([*binaries, os.environ["PATH"]]), BUCKETD_SOURCE=str(ROOT), OMP_NUM_THREADS="1", BUCKETD_HTTP="")
    ports = {address: f"localhost:{free_port()}" for address in set(re.findall(r"localhost:\d+", script))}
    script = re.sub(r"localhost:\d+", lambda found: ports[found[0]], script)
    # A server needs a moment to serve, and a person's next command comes later than a script's.
    script = re.sub(r"^(bucketd .*&)$", r"\1\nsleep 2", script, flags=re.MULTILINE)
    process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", "trap 'echo done $?' EXIT\n" + script], cwd=folder, env=environment, text=True, start_new_session=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        with open(folder / "said", "w+") as said:
            for line in process.stdout:
                said.write(line)
                said.flush()
                if line.startswith("done "):
                    break
        text = (folder / "said").read_text()
        assert "done 0" in text, text[-4000:]
        return text
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its servers too
        process.wait(timeout)
        process.stdout.close()


def test_the_quickstart_has_five_commands():
    assert len([line for line in commands(QUICKSTART).splitlines() if line.strip()]) == 5


@pytest.mark.slow
def test_every_command_of_the_page_does_what_it_says(tmp_path):
    said = run(commands(PAGE), tmp_path, timeout=60)
    assert said.count("h100_nvlink") >= 3, said  # costs list: by certificate, after the renewal, by token
    assert "serving" in said, said  # the operator's status
    assert re.search(r"^start 0, 0/fw: plan [0-9a-f]+, answers to ranks 0, 1", said, re.MULTILINE), said  # the job's report
