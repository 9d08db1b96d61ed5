"""Ninja's "[12/340] ..." lines from stdin, thinned to one a tenth; warnings and errors pass as they are."""

import re
import sys

last = None
for line in sys.stdin:
    count = re.match(r"\[(\d+)/(\d+)\]", line)
    if count:
        done, of = map(int, count.groups())
        if last != (tenth := 10 * done // of):
            print("  ", count[0], flush=True)
        last = tenth
    elif not line.startswith("-- "):
        print(line, end="", flush=True)
