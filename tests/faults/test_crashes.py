"""A server dies at each place of its code where that matters (crash_table.py), in each role that comes there: the ranks that train
meanwhile have one plan a generation, within their time and without it; what was acknowledged is there; the next start serves."""

import contextlib
import pathlib

import crash_roles
import crash_scenes
import driver
import pytest
from crash_table import FIRST, MATRIX, ROLES, ROWS, Never, marks


@pytest.fixture(scope="module")
def reference():
    with driver.harness.Reference() as one:
        yield one


@pytest.fixture(scope="module")
def stages():
    """Of which one stands, as a list; it is made when it is needed."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.ExitStack())]


def stage_of(stages: list) -> crash_scenes.Stage:
    if len(stages) == 1:
        stages.append(crash_scenes.Stage(stages[0]))
    return stages[1]


def led_by(name: str):
    return getattr(crash_scenes, name, None) or getattr(crash_roles, name, None)


@pytest.mark.slow
@pytest.mark.parametrize("row", [pytest.param(row, id=str(row), marks=() if row.first else pytest.mark.full) for row in ROWS])
def test_who_dies_there_takes_nothing_along(row, stages, reference):
    scene = crash_scenes.Scene(stage_of(stages), row, reference)
    try:
        led_by(row.led_by)(scene)
    except BaseException:
        scene.orders.take_back()
        stages.pop()
        stages[0].close()
        raise


def test_every_mark_stands_once_and_has_each_role_or_the_reason_why_not():
    assert sorted(marks()) == sorted(set(marks())) == sorted({place for row in ROWS for place in row.at.split(" > ")})
    assert len(ROWS) == len({(row.at, row.role) for row in ROWS}) and FIRST <= {(row.at, row.role) for row in ROWS}
    for places, cells in MATRIX:
        assert cells.keys() == ROLES.keys() and all(cells.values()), places
        for cell in cells.values():
            assert isinstance(cell, Never) or led_by(cell) is not None, cell


def test_the_product_does_not_look_for_orders():
    mortal, product = (pathlib.Path(program).read_bytes() for program in (crash_scenes.MORTAL, driver.harness.BINARY))
    assert b"CRASH_POINTS" in mortal and b"CRASH_POINTS" not in product
