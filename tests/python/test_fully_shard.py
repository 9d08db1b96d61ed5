"""What `bucketctl advise` says, applied to eager FSDP2: it trains the same weights, with other collectives."""

import json
import pathlib
import sys

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

import bucketd

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples"))

import llama  # noqa: E402

WORLD = 4
SMALL = llama.LlamaConfig(vocab=11, dim=6, layers=2, heads=2, kv_heads=1, head_dim=4, hidden=7)
ADVICE = {"units": [["tok_embeddings"], ["layers.0", "layers.1"], ["norm"], ["output"]], "prefetch_forward": 2, "prefetch_backward": 1,
          "reshard_after_forward": True}


@pytest.mark.slow
def test_a_captured_steps_advice_trains_the_unadvised_runs_weights(tmp_path):
    said = json.loads(run_ranks("advice_worker.py", WORLD, str(tmp_path), "even", "bucketctl", timeout=240)[0].splitlines()[-1])
    now, advised = said["advice"]["now"], said["advice"]["advised"]
    # Launches are what a step costs here: fewer and larger units, none of them gathered twice.
    assert len(advised["units"]) < len(now["units"]) == 6 and not advised["reshard_after_forward"] and now["reshard_after_forward"]
    assert advised["step_us"] < now["step_us"]
    assert said["gathers"][1] < said["gathers"][0]
    assert said["weights"][0] == said["weights"][1] and said["gradients"][0] == said["gradients"][1]


@pytest.mark.slow
def test_a_traced_steps_advice_trains_the_unadvised_runs_weights(tmp_path):
    said = json.loads(run_ranks("advice_worker.py", WORLD, str(tmp_path), "even", "traced", timeout=240)[0].splitlines()[-1])
    now, advised, trace = said["advice"]["now"], said["advice"]["advised"], said["advice"]["trace"]
    # As the worker wraps, and as FSDP2 trains on CPUs: each collective is waited for where it is launched.
    assert now["units"] == [["tok_embeddings"], *([f"layers.{i}"] for i in range(4)), ["norm", "output"]]
    assert now["reshard_after_forward"] and trace["steps"] == 3 and trace["waits_at_launch"]
    # Ranks that wait for each other take longer than a prediction can know, none less than what was computed.
    assert 0.25 * trace["step_us"] < now["step_us"] < 1.5 * trace["step_us"]
    assert len(advised["units"]) == 4 and not advised["reshard_after_forward"] and advised["step_us"] < now["step_us"]
    assert said["gathers"][1] < said["gathers"][0]
    assert said["weights"][0] == said["weights"][1] and said["gradients"][0] == said["gradients"][1]


@pytest.mark.slow
def test_what_is_wrapped_as_advised_keeps_its_bits_on_odd_sizes_too(tmp_path):
    said = json.loads(run_ranks("advice_worker.py", WORLD, str(tmp_path), "odd", "by hand", timeout=240)[0].splitlines()[-1])
    assert said["weights"][0] == said["weights"][1] and said["gradients"][0] == said["gradients"][1]
    assert said["gathers"][1] < said["gathers"][0]


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
    dist.destroy_process_group()


def test_units_are_wrapped_and_told_what_to_prefetch(mesh, monkeypatch):
    told = {}
    for name in ("set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch", "set_reshard_after_forward"):
        before = getattr(FSDPModule, name)

        def tell(self, value, _name=name, _before=before, **more):
            told.setdefault(_name, []).append((self, value))
            return _before(self, value, **more)

        monkeypatch.setattr(FSDPModule, name, tell)
    model = bucketd.apply_to_fully_shard(llama.build(SMALL), {"advised": ADVICE}, mesh=mesh)
    wrapped = [name for name, module in model.named_modules() if isinstance(module, FSDPModule)]
    assert wrapped == ["", "tok_embeddings", "layers.0", "layers.1", "norm", "output"]
    embeddings, blocks, norm, output = model.tok_embeddings, model.layers[0], model.norm, model.output
    assert told["set_modules_to_forward_prefetch"] == [(embeddings, [blocks, norm]), (blocks, [norm, output]), (norm, [output]), (output, [])]
    assert told["set_modules_to_backward_prefetch"] == [(embeddings, []), (blocks, [embeddings]), (norm, [blocks]), (output, [norm])]
    assert told["set_reshard_after_forward"] == [(unit, True) for unit in (embeddings, blocks, norm, output)]
    tokens = torch.arange(12).reshape(2, 6) % SMALL.vocab
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_an_advice_for_another_model_or_wrapping_is_refused_before_anything_changes(mesh):
    model = llama.build(SMALL)
    apply = bucketd.apply_to_fully_shard
    with pytest.raises(ValueError, match=r"wraps tok_embedding, and the model has no such module \(but tok_embeddings\)"):
        apply(model, {**ADVICE, "units": [["tok_embedding"]]}, mesh=mesh)
    with pytest.raises(ValueError, match="advice without prefetch_backward, reshard_after_forward, units"):
        apply(model, {"prefetch_forward": 1}, mesh=mesh)
    assert not any(isinstance(module, FSDPModule) for module in model.modules())
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    with pytest.raises(ValueError, match="the advice wraps tok_embeddings, and the model is wrapped otherwise"):
        apply(model, ADVICE)
    with pytest.raises(ValueError, match=r"the advice wraps layers.0\+layers.1, and the model is wrapped otherwise"):
        apply(model, {**ADVICE, "units": [["layers.0", "layers.1"]]})
    with pytest.raises(ValueError, match="the model wraps layers.1, and the advice does not"):
        apply(model, {**ADVICE, "units": [["layers.0"]]})
    with pytest.raises(ValueError, match="mesh: for fully_shard, and the model is wrapped already"):
        apply(model, {**ADVICE, "units": [["layers.0"], ["layers.1"]]}, mesh=mesh)
