"""One rank of trainings by torchtitan's own Trainer on the CPU, one after the other in one process.

    titan_worker.py '{"assets": FOLDER, "runs": {NAME: {...}}}'

prints a line of JSON: for each run its losses, the digest of this rank's weights, seconds of each step, and the collectives
of the graph that it ran. A run says what it changes in the debug model's own config; "bucketd" are options of configure().
"""

from __future__ import annotations

import collections
import hashlib
import importlib
import json
import pathlib
import sys
import time

import titan_on_cpu  # noqa: F401
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

# What asks for CUDA: graphs, and recomputation, which does not know the CPU's attention.
_OF_CUDA = ["cudagraph_pass", "tag_with_memory_policy_pass", "selective_activation_remat_pass"]


def config(asked: dict, assets: pathlib.Path):
    """The debug model's own, with a small batch, plain attention and loss, and the data and tokenizer in `assets`."""
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.models.common.config_utils import decoder_vocab_size

    family = asked.get("model", "llama3")
    package = f"torchtitan.experiments.graph_trainer.{family}"
    made = getattr(importlib.import_module(f"{package}.config_registry"), f"graph_trainer_{family}_debugmodel")()
    made.model_spec = importlib.import_module(package).model_registry("debugmodel", attn_backend="sdpa")
    del made.model_spec.model.layers[asked.get("layers", 3):]
    made.loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(made.model_spec))
    made.hf_assets_path, made.dump_folder = str(assets / "tokenizer"), str(assets / "outputs")
    made.dataloader.dataset_path = str(assets / "data")
    made.training.local_batch_size, made.training.seq_len, made.training.steps = 2, 64, asked.get("steps", 3)
    made.training.disable_cuda_graphs = True
    made.checkpoint.enable = made.validator.enable = False
    made.activation_checkpoint = None
    made.debug.seed, made.debug.deterministic = 7, True
    made.compile.disable_passes = [*_OF_CUDA, *asked.get("without", ())]
    for part in ("compile", "parallelism", "training"):
        for name, value in asked.get(part, {}).items():
            setattr(getattr(made, part), name, value)
    return made


def launches(gm: torch.fx.GraphModule) -> dict[str, int]:
    """Collectives by their operators' names."""
    targets = (node.target for node in gm.graph.nodes if node.op == "call_function")
    names = (str(target).split(".")[1] for target in targets if str(target).startswith("_c10d_functional."))
    return dict(collections.Counter(name for name in names if name != "wait_tensor"))


class Run:
    """One training, and what was seen of it."""

    def __init__(self, asked: dict, assets: pathlib.Path):
        self.asked, self.assets = asked, assets
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.planned: list[dict] = []

    def train(self) -> dict:
        if "bucketd" in self.asked:
            import bucketd.torchtitan

            bucketd.torchtitan.configure(on_plan=self._on_plan, **self.asked["bucketd"])
        trainer = config(self.asked, self.assets).build()
        self._watch(trainer)
        trainer.train()
        traced = getattr(trainer, "_traced_step", None)
        seen = dict(losses=self.losses, weights=weights(trainer.model_parts[0]), seconds=self.seconds, planned=self.planned,
                    launches=launches(traced.gm) if traced is not None else {})
        trainer.close()
        return seen

    def _on_plan(self, planned):
        kinds = collections.Counter(bucket.kind for bucket in planned.plan.buckets)
        self.planned.append(dict(scope=planned.scope, summary=planned.plan.summary(planned.source), buckets=dict(kinds),
                                 launches=launches(planned.module)))

    def _watch(self, trainer):
        step, log = trainer.train_step, trainer.metrics_processor.log

        def timed(data):
            begin = time.perf_counter()
            step(data)
            self.seconds.append(time.perf_counter() - begin)

        def logged(number, loss, *rest, **named):
            self.losses.append(loss)
            log(number, loss, *rest, **named)

        trainer.train_step, trainer.metrics_processor.log = timed, logged


def weights(model: torch.nn.Module) -> str:
    """SHA-256 of this rank's parts of the weights and buffers."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        value = value.to_local() if isinstance(value, DTensor) else value
        digest.update(name.encode())
        digest.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def main():
    asked = json.loads(sys.argv[1])
    time.sleep = lambda seconds: None  # torchtitan's, behind each training
    seen = {name: Run(run, pathlib.Path(asked["assets"])).train() for name, run in asked["runs"].items()}
    print("\n" + json.dumps(seen), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
