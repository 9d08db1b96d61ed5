"""The mutations fit the code, and their table is up to date; that each is seen, tests/mutate.py shows (tests/run.sh --full)."""

import subprocess
import sys

import mutate


def test_every_mutation_fits_the_code():
    assert not mutate.faults(mutate.mutations())


def test_the_table_is_the_one_of_the_mutations():
    assert mutate.TABLE.read_text() == mutate.table(), "run tests/mutate.py --table"


def test_a_case_that_nothing_breaks_is_no_success():
    run = subprocess.run([sys.executable, mutate.__file__, "NoSuchCase"], capture_output=True, text=True)
    assert run.returncode == 2 and "no mutation breaks a case that begins with NoSuchCase" in run.stderr
