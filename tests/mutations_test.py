"""The mutations fit the code, and their table is up to date; that each is seen, tests/mutate.py shows (tests/run.sh --full)."""

import mutate


def test_every_mutation_fits_the_code():
    assert not mutate.faults(mutate.mutations())


def test_the_table_is_the_one_of_the_mutations():
    assert mutate.TABLE.read_text() == mutate.table(), "run tests/mutate.py --table"
