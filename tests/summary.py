"""The end of tests/run.sh: seconds by step and, as the last line, what passed. argv: the folder with seconds.tsv and JUnit reports.

A C++ test program counts as one, as ctest counts.
"""

import pathlib
import sys
import xml.etree.ElementTree


def counted(report: pathlib.Path) -> tuple[int, int, int]:
    """Passed, failed and skipped."""
    passed = failed = skipped = 0
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            failed += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    seconds = folder / "seconds.tsv"
    rows = [line.split("\t") for line in seconds.read_text().splitlines()] if seconds.exists() else []
    print("\nSeconds by step")
    for took, name in rows:
        print(f"{took:>7}  {name}")
    print(f"{sum(int(took) for took, _ in rows):>7}  in all\n")
    passed, failed, skipped = (sum(column) for column in zip((0, 0, 0), *map(counted, sorted(folder.glob("*.xml")))))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
