"""What `bucketctl advise` says, done to a model that trains with fully_shard (FSDP2), eagerly. Through its public functions alone."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule, fully_shard


def apply_to_fully_shard(model: torch.nn.Module, advice: Mapping[str, Any] | str | os.PathLike[str], **arguments: Any) -> torch.nn.Module:
    """`model`, wrapped and told what to prefetch as advised. The same on every rank, before the first step.

    advice     the object that `bucketctl advise --json` printed (json.loads), or the path of a file that holds it
    arguments  of torch's fully_shard, for each unit: mesh=, mp_policy=, ...

    A model that is not wrapped yet is: a unit at a time in the advice's order, then the model itself. One that is keeps its wrapping,
    which must be the advised one. Then modules to prefetch and resharding after the forward are set, the latter where the advice
    has it; the model's own module keeps what it has. Sums of gradients have the bits of the same wrapping without advice; another
    wrapping packs them in other company, which can change how a reduction that rounds adds them.

    Raises ValueError, before anything is changed, for an advice that names modules that the model does not have, or is of other units than
    the model's.
    """
    advised = _read(advice)
    units = [_modules(model, names) for names in advised["units"]]
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        if arguments:
            raise ValueError(f"{', '.join(arguments)}: for fully_shard, and the model is wrapped already")
        _check_wrapping(model, units, advised["units"])
    else:
        for modules in units:
            fully_shard(modules if len(modules) > 1 else modules[0], **arguments)
        if not isinstance(model, FSDPModule):
            fully_shard(model, **arguments)
    first = [modules[0] for modules in units]  # a unit's modules share their state
    for at, module in enumerate(first):
        module.set_modules_to_forward_prefetch(first[at + 1:at + 1 + advised["prefetch_forward"]])
        module.set_modules_to_backward_prefetch(first[max(0, at - advised["prefetch_backward"]):at][::-1])
        if advised["reshard_after_forward"] is not None:
            module.set_reshard_after_forward(advised["reshard_after_forward"], recurse=False)
    return model


def _read(advice) -> Mapping[str, Any]:
    if not isinstance(advice, Mapping):
        with open(advice, encoding="utf-8") as file:
            advice = json.load(file)
    advised = advice.get("advised", advice)
    missing = {"units", "prefetch_forward", "prefetch_backward", "reshard_after_forward"} - set(advised)
    if missing:
        raise ValueError(f"advice without {', '.join(sorted(missing))}: expected what `bucketctl advise --json` prints")
    return advised


def _modules(model: torch.nn.Module, names: Sequence[str]) -> list[torch.nn.Module]:
    known = dict(model.named_modules())
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise ValueError(f"the advice wraps {name}, and the model has no such module{f' (but {near[0]})' if near else ''}")
    return [known[name] for name in names]


def _is_one(modules: list[torch.nn.Module]) -> bool:
    """Whether one call wrapped them: they then have one state, which nothing public tells."""
    return len({id(module._get_fsdp_state()) for module in modules}) == 1


def _check_wrapping(model: torch.nn.Module, units: list[list[torch.nn.Module]], names: Sequence[Sequence[str]]) -> None:
    for modules, unit in zip(units, names):
        if not all(isinstance(module, FSDPModule) for module in modules) or not _is_one(modules):
            raise ValueError(f"the advice wraps {'+'.join(unit)}, and the model is wrapped otherwise: wrap as advised (leave it unwrapped, "
                             f"and give fully_shard's arguments here), or say bucketctl advise --units what is wrapped")
    advised = {id(module) for modules in units for module in modules} | {id(model)}
    other = [name for name, module in model.named_modules() if isinstance(module, FSDPModule) and id(module) not in advised]
    if other:
        raise ValueError(f"the model wraps {', '.join(other)}, and the advice does not: say bucketctl advise --units what is wrapped")
