"""What the proof trains: one cell is one run. The tests say which, the ranks train them."""

from __future__ import annotations

import dataclasses
import json

# Mesh dimensions by parallelism, for 4 and, where two are too few to have an order of summation, for 6 ranks.
MESHES = {
    "fsdp": (("fsdp", 4),),
    "ddp": (("ddp", 4),),
    "hsdp": (("replicate", 2), ("shard", 2)),
    "fsdp+tp": (("fsdp", 2), ("tp", 2)),
    "hsdp 3x2": (("replicate", 3), ("shard", 2)),
    "fsdp+tp 3x2": (("fsdp", 3), ("tp", 2)),
}
# Eager's units of the models here, as mode manual has them written.
EAGER_UNITS = "tok_embeddings,layers.*,norm+output"


@dataclasses.dataclass(frozen=True)
class Cell:
    parallelism: str  # of MESHES
    # "eager": FSDP2. "unplanned": compiled. "planned": compiled, by a plan. "by hand": neither, gradients reduced in the
    # flat buffers of the plan of the planned cell with the same mode, numerics and options, or, without a mode, one by one.
    run: str
    dtype: str  # of reductions: "bf16", "fp32"
    mode: str = ""
    numerics: str = ""
    options: tuple[tuple[str, str | int], ...] = ()  # of bucketd.backend
    model: str = "tiny"  # or "llama even", "llama odd"
    twist: str = ""  # what a counter-case has different
    steps: int = 6

    @property
    def world(self) -> int:
        size = 1
        for _, dim in MESHES[self.parallelism]:
            size *= dim
        return size

    def like(self, run: str, **changes) -> Cell:
        """The unplanned, eager or hand-made run that this one is compared with."""
        return dataclasses.replace(self, **{**dict(run=run, mode="", numerics="", options=(), twist=""), **changes})

    def __str__(self) -> str:
        options = [f"{name}={value}" for name, value in self.options]
        steps = "" if self.steps == 6 else f"{self.steps} steps"
        words = (self.parallelism, self.model, self.dtype, self.run, self.mode, self.numerics, *options, self.twist, steps)
        return ", ".join(word for word in words if word)


def save(cells, path) -> None:
    path.write_text(json.dumps([dataclasses.asdict(cell) for cell in cells]))


def load(path) -> list[Cell]:
    return [Cell(**{**cell, "options": tuple(map(tuple, cell["options"]))}) for cell in json.loads(path.read_text())]
