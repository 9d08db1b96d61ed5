"""What torchtitan 0.3.0 lacks to train on a machine without an accelerator; its own code runs unchanged.

`import titan_on_cpu` comes before the first import of torchtitan. It takes every machine for a CPU, answers what torchtitan asks
an accelerator for (memory, a stream), stands in for one module of Triton kernels that none of our models calls, and for
torch.distributed.set_timeout, which torch 2.13.0 does not have.
"""

from __future__ import annotations

import json
import pathlib
import sys
import types

import torch
import torch._utils
import torch.distributed as dist

_KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"


class _Cpu(types.ModuleType):
    """torch.cpu with an accelerator's memory queries."""

    def __getattr__(self, name):
        return getattr(torch.cpu, name)

    def get_device_name(self, device=None):
        return "CPU"

    def get_device_properties(self, device=None):
        return types.SimpleNamespace(total_memory=64 << 30)

    def current_device(self):
        return 0

    def memory_stats(self, device=None):
        return {}

    def reset_peak_memory_stats(self, device=None):
        pass

    def empty_cache(self):
        pass


class _Kernels(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


torch._utils._get_available_device_type = lambda: "cpu"
torch._utils._get_device_module = lambda device_type: _Cpu("cpu")
sys.modules[_KERNELS] = _Kernels(_KERNELS)
if not hasattr(dist, "set_timeout"):
    dist.set_timeout = lambda timeout, group=None: None


def dram_gbps():
    """Of what torch's overlap scheduler, behind torchtitan's own bucketing, would ask Triton."""
    import torch._inductor.utils as utils
    import torch.utils._runtime_estimation as estimation

    utils.get_gpu_dram_gbps = estimation.get_gpu_dram_gbps = lambda: 100


dram_gbps()


def assets(folder: pathlib.Path) -> None:
    """A tokenizer and a data set for torchtitan's debug models, whose own are not in its wheel."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    words = ["the", "plan", "gathers", "what", "a", "block", "needs", "before", "it", "runs", "and", "scatters", "sums", "after", "it"]
    lines = [" ".join(words[(i * k + k * k) % len(words)] for k in range(1, 40)) for i in range(400)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    for name in ("tokenizer", "data"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    (folder / "data" / "data.json").write_text("\n".join(json.dumps({"text": line}) for line in lines))
