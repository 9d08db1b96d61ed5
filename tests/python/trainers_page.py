"""What client/python/TRAINERS.md has a reader type, by the heading under which it stands. test_package.py sees that tests run all of it."""

from __future__ import annotations

import functools
import pathlib
import re

PATH = pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "TRAINERS.md"


@functools.cache
def everything() -> dict[tuple[str, str], list[str]]:
    """The blocks of code by heading and language, in order."""
    found: dict[tuple[str, str], list[str]] = {}
    for section in re.split(r"^#+ ", PATH.read_text(), flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        for language, code in re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            found.setdefault((heading, language), []).append(code)
    return found


def blocks(heading: str, language: str) -> list[str]:
    return everything()[heading, language]


def commands(heading: str) -> list[str]:
    return "".join(blocks(heading, "sh")).replace("\\\n", " ").splitlines()
