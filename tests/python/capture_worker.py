"""One rank: captures steps of the vectors' model and compares digests with the others. Prints them, rank 0's for all.

    capture_worker.py CASE [CASE ...]      a case may be changed: NAME:width=5,hidden=9
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "data" / "vectors"))

from generate import capture_step  # noqa: E402
from tiny_step import CASES  # noqa: E402

from bucketd.canonical import digest  # noqa: E402
from bucketd.normalize import normalize  # noqa: E402


def main() -> None:
    dist.init_process_group("gloo")
    report = {}
    for text in sys.argv[1:]:
        name, _, changes = text.partition(":")
        case = dataclasses.replace(CASES[name], **{k: int(v) for k, _, v in (c.partition("=") for c in changes.split(",") if c)})
        torch._dynamo.reset()
        for raw in capture_step(case, name):
            everyone = [None] * dist.get_world_size()
            mine = {"digest": digest(normalize(raw).graph).hex(), "raw_nodes": len(raw.nodes),
                    "groups": [g.name for g in raw.groups]}
            dist.all_gather_object(everyone, mine)
            report[f"{text}.{raw.kind}"] = everyone
    if dist.get_rank() == 0:
        print("REPORT " + json.dumps(report))
    dist.destroy_process_group()


main()
