"""A disk that can be filled."""

import errno
import os
import pathlib
import shutil
import subprocess

import pytest


class Disk:
    """A few MiB that only servers `within` see, in a namespace that lasts as long as this."""

    def __init__(self, folder: pathlib.Path, mib: int = 3, user: str = ""):
        """`user`: whose it is, where root makes it."""
        self.path = folder / "disk"
        self.path.mkdir()
        root = os.geteuid() == 0
        script = f'mount -t tmpfs -o size={mib}m,mode=700 none "$0" && echo mounted && exec sleep 600'
        self.holder = subprocess.Popen(["unshare", "--mount", *(() if root else ("--map-root-user",)), "bash", "-c", script,
                                        str(self.path)], stdout=subprocess.PIPE, text=True)
        assert self.holder.stdout.readline() == "mounted\n"
        as_whom = () if root else ("--user", "--preserve-credentials")
        self.within = ("nsenter", "--target", str(self.holder.pid), "--mount", *as_whom, f"--wd={folder}")
        self.seen = pathlib.Path(f"/proc/{self.holder.pid}/root{self.path}")
        self.filler = self.seen / "filler"
        if root and user:
            shutil.chown(self.seen, user, user)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.holder.kill()
        self.holder.communicate()

    def fill(self) -> None:
        with open(self.filler, "ab", buffering=0) as file, pytest.raises(OSError) as full:
            while True:
                file.write(bytes(4096))
        assert full.value.errno == errno.ENOSPC

    def free(self) -> None:
        self.filler.unlink()
