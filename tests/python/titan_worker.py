"""One rank of trainings by torchtitan's own Trainer on the CPU, in one process.

    titan_worker.py '{"assets": FOLDER, "runs": {NAME: {...}}, "paired": false}'

prints a line of JSON: for each run its losses, the digest of this rank's weights, seconds of each step, and the collectives
of the graph that it ran. A run says what it changes in the debug model's own config; "bucketd" are options of configure().
One training comes after the other; those that are paired take turns, a step each.
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
from compilations import Compilations, planned_graph
from torch._inductor.codecache import PyCodeCache
from torch.distributed.tensor import DTensor

from bucketd import errors, launch_order, ops

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


def under_exchanges(nodes) -> list[list[str]]:
    """Products and collectives between the launch of each exchange of tokens and its wait."""
    order = {node: at for at, node in enumerate(nodes)}
    found = []
    for launch in order:
        if launch.op == "call_function" and str(launch.target).startswith("_c10d_functional.all_to_all"):
            wait = next(iter(launch.users))
            between = list(order)[order[launch] + 1:order[wait]]
            found.append([str(node.target) for node in between if ops.formula(node.target) or "_c10d_functional" in str(node.target)])
    return found


def generated() -> list[str]:
    """What Inductor wrote since the last call and communicates."""
    sources = [pathlib.Path(module.__file__).read_text() for module in PyCodeCache.modules]
    PyCodeCache.modules.clear()
    return [source for source in sources if "_c10d_functional" in source]


class Run:
    """One training, and what was seen of it."""

    def __init__(self, asked: dict, assets: pathlib.Path):
        self.asked, self.assets = asked, assets
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self.planned: list[dict] = []
        self.events: launch_order.Events = []
        self.made = Compilations()

    def build(self) -> None:
        if "bucketd" in self.asked:
            import bucketd.torchtitan

            bucketd.torchtitan.configure(on_plan=self._on_plan, **self.asked["bucketd"])
        self.trainer = config(self.asked, self.assets).build()
        self._watch()

    def train(self) -> dict:
        self.build()
        self.trainer.train()
        return self.seen()

    def steps(self):
        """The steps of train(), one for each next()."""
        data = self.trainer.batch_generator(self.trainer.dataloader)
        while self.trainer.should_continue_training():
            self.trainer.step += 1
            self.trainer.train_step(data)
            yield

    def seen(self) -> dict:
        traced = getattr(self.trainer, "_traced_step", None)
        seen = dict(losses=self.losses, weights=weights(self.trainer.model_parts[0]), seconds=self.seconds, planned=self.planned, **vars(self.made),
                    launches=launches(traced.gm) if traced is not None else {}, code=[self._differs(source) for source in generated()])
        self.trainer.close()
        return seen

    def _differs(self, source: str) -> str:
        """What Inductor's code does otherwise than the plan."""
        try:
            return launch_order.check(self.events, source)
        except errors.InductorOrderError as error:
            return str(error)

    def _on_plan(self, planned):
        self.planned.append(dict(
            **planned_graph(planned), scope=planned.scope, **{"run by": planned.runner.takes_text if planned.runner else ""}, summary=planned.plan.summary(planned.source), launches=launches(planned.module),
            under_exchanges=[under_exchanges(planned.captured.nodes), under_exchanges(planned.module.graph.nodes)]))
        self.events = launch_order.of_graph(planned.module)

    def _watch(self):
        step, log = self.trainer.train_step, self.trainer.metrics_processor.log

        def timed(data):
            begin = time.perf_counter()
            with self.made.watching():
                step(data)
            self.seconds.append(time.perf_counter() - begin)
            print(f"step {len(self.seconds)}", flush=True)  # whoever waits for us hears that we go on

        def logged(number, loss, *rest, **named):
            self.losses.append(loss)
            log(number, loss, *rest, **named)

        self.trainer.train_step, self.trainer.metrics_processor.log = timed, logged


def train_paired(runs: dict[str, Run]) -> dict:
    for run in runs.values():
        run.build()
    turns = [run.steps() for run in runs.values()]
    while all([next(steps, False) is None for steps in turns]):
        turns.reverse()  # what else the machine does meets both alike
    return {name: run.seen() for name, run in runs.items()}


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
    runs = {name: Run(run, pathlib.Path(asked["assets"])) for name, run in asked["runs"].items()}
    seen = train_paired(runs) if asked.get("paired") else {name: run.train() for name, run in runs.items()}
    print("\n" + json.dumps(seen), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
