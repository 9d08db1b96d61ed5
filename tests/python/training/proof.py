"""Trains the cells that the selected tests ask for, in one job for each number of ranks, and puts what came out in a table."""

from __future__ import annotations

import collections
import json
import pathlib
import tempfile

import cells
from cells import Cell
from ranks import run_ranks

ROOT = pathlib.Path(__file__).resolve().parents[3]
_KINDS = ("all_gather", "reduce_scatter", "all_reduce")
_RUNS = ("eager", "unplanned", "planned", "by hand")
_SHORT = {"all_gather": "AG", "reduce_scatter": "RS", "all_reduce": "AR"}


class Proof:
    def __init__(self, wanted, table: pathlib.Path = ROOT / "build" / "proof.txt"):
        # Buffers by hand are those of a plan that is there by then.
        self.wanted = sorted(dict.fromkeys(wanted), key=lambda cell: cell.run == "by hand")
        self.table = table
        self._ranks: dict[int, list[dict] | Exception] = {}

    def ranks(self, cell: Cell) -> list[dict]:
        """Of every rank what it has to say of a cell."""
        job = self._job(cell.world)
        if isinstance(job, Exception):
            raise job
        return [rank[str(cell)] for rank in job]

    def bits(self, cell: Cell) -> tuple[str, str]:
        """SHA-256 over all ranks' shards: of the weights at the end, and of each step's gradients and weights."""
        result = self.ranks(cell)[0]
        assert len(result["losses"]) == cell.steps
        return result["weights"], result["gradients"]

    def launched(self, cell: Cell) -> dict[str, int]:
        """Collectives of one step, by kind."""
        counts = [result["collectives"] for result in self.ranks(cell)]
        assert all(count == counts[0] for count in counts), f"ranks launched different collectives: {counts}"
        return counts[0]

    def plans(self, cell: Cell) -> list[dict]:
        return self.ranks(cell)[0]["plans"]

    def buckets(self, cell: Cell, kind: str) -> list[dict]:
        return [bucket for plan in self.plans(cell) for bucket in plan["buckets"] if bucket["kind"] == kind]

    def _job(self, world: int):
        if world not in self._ranks:
            try:
                self._ranks[world] = self._train([cell for cell in self.wanted if cell.world == world], world)
            except (AssertionError, TimeoutError) as error:
                self._ranks[world] = error  # kept: other tests need not train to fail
            self._write_table()
        return self._ranks[world]

    def _train(self, of_world: list[Cell], world: int) -> list[dict]:
        with tempfile.TemporaryDirectory() as folder:
            wanted, out = pathlib.Path(folder, "cells.json"), pathlib.Path(folder, "results.json")
            cells.save(of_world, wanted)
            run_ranks("training/worker.py", world, str(wanted), str(out), timeout=120 + 60 * len(of_world))
            return json.loads(out.read_text())

    # -- the table

    def _write_table(self) -> None:
        trained = {cell: rank[0][str(cell)] for cell in self.wanted
                   if isinstance(rank := self._ranks.get(cell.world), list)}
        head = ("parallelism", "model", "sums in", "run or mode", "numerics", "and", "buckets", "launches a step", "= eager",
                "= unplanned", "= by hand")
        order = sorted(trained, key=lambda cell: (cell.model, cell.parallelism, cell.dtype, _RUNS.index(cell.run)))
        rows = [head, *(self._row(cell, trained) for cell in order)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in rows]
        lines.insert(1, "-" * max(map(len, lines)))
        self.table.parent.mkdir(parents=True, exist_ok=True)
        self.table.write_text("\n".join(lines) + "\n\n" + _LEGEND)

    def _row(self, cell: Cell, trained: dict[Cell, dict]) -> tuple[str, ...]:
        result = trained[cell]
        special = " ".join([*(f"{name}={value}" for name, value in cell.options), cell.twist]).strip()
        run = cell.mode if cell.run == "planned" else " ".join((cell.run, cell.mode)).strip()
        start = (cell.parallelism, cell.model, cell.dtype, run, cell.numerics, special)
        plain = cell.like("unplanned")
        before, after = trained.get(plain, {}).get("collectives", {}), result["collectives"]
        launches = " ".join(
            _SHORT[kind] + (f" {before[kind]} ->" if cell.run == "planned" and kind in before else "") + f" {after[kind]}"
            for kind in _KINDS if after[kind])
        by_hand = cell.like("by hand", mode=cell.mode, numerics=cell.numerics, options=cell.options)
        others = (trained.get(other) for other in (cell.like("eager"), plain, by_hand))
        return (*start, _forms(result["plans"]), launches, *(_same(result, other) for other in others))


_LEGEND = """\
One run a line, on gloo: bits of every rank's shards of the weights and of the gradients of every step.
buckets: how many of each kind, in one flat buffer (packed) or in one launch of many (grouped), and how many members.
= eager: FSDP2. = unplanned: the compiled graph without a plan. = by hand: reduced by hand in the plan's flat buffers.
"""


def _forms(plans: list[dict]) -> str:
    found = collections.Counter()
    members = collections.Counter()
    for bucket in (bucket for plan in plans for bucket in plan["buckets"]):
        form = f"{_SHORT[bucket['kind']]} {'packed' if bucket['packed'] else 'grouped'}"
        found[form] += 1
        members[form] += len(bucket["parameters"])
    return ", ".join(f"{found[form]} {form} of {members[form]}" for form in sorted(found))


def _same(result: dict, other: dict | None) -> str:
    if other is None or other is result:
        return ""
    return "yes" if (result["weights"], result["gradients"]) == (other["weights"], other["gradients"]) else "no"
