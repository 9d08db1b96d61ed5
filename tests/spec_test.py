"""Every numbered case of the passes' specification has a test that carries its number.

A C++ test says TEST(Greedy, T3_11_...), a Python test def test_t3_11_...; a case may have several. Without arguments this
prints what is missing and fails; with --list it prints every case with its tests.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Section: numbers of its cases, with the letters of cases that come in parts.
CASES = {
    1: [*range(1, 16)],             # tags, primary group
    2: [*range(1, 6), *(f"6{part}" for part in "abcdef"), *range(7, 16)],  # pre-overlap bucketing, output descriptors
    3: [*range(4, 18)],             # greedy, by bytes and topological span; 1 to 3 are T1.13 to T1.15
    4: [*range(1, 22)],             # manual and transformer blocks, order, coverage, lanes
    5: [*range(1, 13)],             # payload order and layout
    6: [*range(1, 15)],             # overlap scheduling and the overlap-preserving bucketer
    7: [*range(1, 11)],             # merged subgraphs
    9: [*range(1, 9)],              # memory
}
# Cases that this design has no place for, and why.
NOT_HERE = {
    "T6.10": "a plan is a total order: control edges are for a compiler that reorders, and none is handed any yet",
    "T6.11": "costs are resolved, or refused, for the whole graph before a pass runs",
    "T9.6": "graphs state no device: every tensor counts",
    "T9.7": "a plan is made for one graph, and forward and backward are two",
}

_CPP = re.compile(r"^TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
_PYTHON = re.compile(r"^\s*def (test_\w+)\(", re.MULTILINE)
_NUMBER = re.compile(r"(?<![A-Za-z0-9])T(\d+)_(\d+[a-f]?)(?![0-9a-z])", re.IGNORECASE)


def all_tests() -> list[str]:
    """FILE: NAME of each."""
    files = subprocess.run(["git", "ls-files", "tests"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    found = []
    for name in files:
        path = ROOT / name
        if path.suffix not in (".cc", ".py") or not path.exists():
            continue
        text = path.read_text()
        names = ([f"{suite}.{test}" for suite, test in _CPP.findall(text)] if path.suffix == ".cc" else _PYTHON.findall(text))
        found += [f"{name}: {test}" for test in names]
    return found


def cases_with_tests() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for test in all_tests():
        for section, number in _NUMBER.findall(re.sub(r"_(?=T\d)", " ", test.split(": ")[1], flags=re.IGNORECASE)):
            found.setdefault(f"T{section}.{number.lower()}", []).append(test)
    return found


def main() -> int:
    found = cases_with_tests()
    expected = [f"T{section}.{number}" for section, numbers in CASES.items() for number in numbers]
    if "--list" in sys.argv[1:]:
        for case in expected:
            print(case, *(found.get(case) or [NOT_HERE.get(case, "no test")]), sep="\n  ")
        return 0
    missing = [case for case in expected if case not in found and case not in NOT_HERE]
    needless = [case for case in NOT_HERE if case in found]
    for case in missing:
        print(f"{case}: no test carries this number")
    for case in needless:
        print(f"{case}: has a test and is listed as having none")
    print(f"{len(expected) - len(missing)} of {len(expected)} cases have a test or a reason for none")
    return 1 if missing or needless else 0


if __name__ == "__main__":
    sys.exit(main())
