"""Fake tensors for nodes whose shapes are known. Running the operator on fake tensors gives the same, and takes ten times as long."""

from __future__ import annotations

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses import FakeTensor


class Fakes:
    """Makes values for the meta of new nodes of `graph`: of its fake mode, or on the meta device where it has none."""

    def __init__(self, graph: fx.Graph):
        self.mode = detect_fake_mode([n.meta.get("val") for n in graph.find_nodes(op="placeholder")])

    def empty(self, shape, like: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor with storage of its own."""
        return self._wrap(torch.empty(shape, dtype=like.dtype, device="meta"), like.device)

    def reshape(self, source: torch.Tensor, shape) -> torch.Tensor:
        """On the storage of `source` if that is contiguous, as aten.reshape."""
        made = torch.empty(shape, dtype=source.dtype, device="meta")
        offset = source.storage_offset()
        if type(offset) is int and source.is_contiguous():  # what stands at a symbolic offset is as good as a copy
            made.set_(source.untyped_storage(), offset, made.shape, made.stride())
        return self._wrap(made, source.device)

    def _wrap(self, made: torch.Tensor, device: torch.device) -> torch.Tensor:
        return made if self.mode is None else FakeTensor(self.mode, made, device)
