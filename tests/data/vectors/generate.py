"""Captures the steps of tiny_step.py on ranks 0 and 3 of a real run, and writes down the digests both must have.

    torchrun --nproc-per-node 4 tests/data/vectors/generate.py [--out DIR] [CASE ...]

needs bucketd to be importable. Fails if the ranks do not agree.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch._dynamo.backends.common import aot_autograd
from functorch.compile import default_partition, make_boxed_func

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from tiny_step import CASES, Case, build  # noqa: E402

from bucketd.canonical import digest  # noqa: E402
from bucketd.capture import capture_graph  # noqa: E402
from bucketd.files import save_graph  # noqa: E402
from bucketd.graph import RawGraph  # noqa: E402
from bucketd.normalize import normalize  # noqa: E402
from bucketd.step_context import CaptureContext  # noqa: E402
from bucketd.tags import tag_joint  # noqa: E402


def capture_step(case: Case, name: str) -> list[RawGraph]:
    """The joint, forward and backward graph of one step, as torch.compile hands them to a backend."""
    captured: list[RawGraph] = []

    def backend(gm, example_inputs):
        context = CaptureContext.from_dynamo(gm, example_inputs)

        def partition(joint, *args, **kwargs):
            tag_joint(joint, context)
            captured.append(capture_graph(joint, context, "joint", name).raw)
            return default_partition(joint, *args, **kwargs)

        def compiler(kind):
            def compile_graph(part, inputs):
                captured.append(capture_graph(part, context, kind, name).raw)
                return make_boxed_func(part.forward)

            return compile_graph

        return aot_autograd(fw_compiler=compiler("fw"), bw_compiler=compiler("bw"), partition_fn=partition)(
            gm, example_inputs
        )

    model, tokens = build(case)
    torch.compile(model, backend=backend)(tokens).backward()
    return captured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank, vectors, disagreement = dist.get_rank(), {}, []
    for name in arguments.cases:
        torch._dynamo.reset()
        for raw in capture_step(CASES[name], name):
            mine = digest(normalize(raw).graph).hex()
            digests = [""] * dist.get_world_size()
            dist.all_gather_object(digests, mine)
            if len(set(digests)) != 1:
                disagreement.append(f"{name}.{raw.kind}: {digests}")
            for writer in (0, 3):
                file = f"{name}.{raw.kind}.rank{writer}.json.gz"
                vectors[file] = mine
                if rank == writer:
                    save_graph(raw, arguments.out / file)
    if rank == 0 and not disagreement:
        (arguments.out / "vectors.json").write_text(json.dumps(vectors, indent=1, sort_keys=True) + "\n")
    dist.destroy_process_group()
    if disagreement:
        sys.exit("the ranks disagree:\n" + "\n".join(disagreement))


if __name__ == "__main__":
    main()
