"""The copies in tests/data are the originals, wherever the originals are at hand (../shared beside the checkout)."""

import filecmp
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
COPIES = [("referee", "tests/data/referee"), ("graphs", "tests/data/graphs")]


def test_copies_are_complete_here():
    names = {p.name for p in (ROOT / "tests/data/graphs").iterdir()}
    assert len([n for n in names if n.endswith(".json.gz")]) == 24 and "peers.json" in names
    assert {"referee.py", "profiles.json", "MODEL.md"} <= {p.name for p in (ROOT / "tests/data/referee").iterdir()}


@pytest.mark.parametrize("source, copy", COPIES)
def test_copies_equal_the_originals(source, copy):
    if not SHARED.is_dir():
        return  # a clone without the originals has nothing to compare with
    for original in (SHARED / source).iterdir():
        if original.suffix in {".gz", ".py", ".json"} or original.name == "MODEL.md":
            assert filecmp.cmp(original, ROOT / copy / original.name, shallow=False), original.name
