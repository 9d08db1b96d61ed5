"""The parts of the examples by themselves; test_wheel.py runs them."""

from __future__ import annotations

import pathlib
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "client" / "python" / "examples"
sys.path.insert(0, str(EXAMPLES))

import llama  # noqa: E402
import simple_fsdp  # noqa: E402

SMALL = llama.LlamaConfig(vocab=11, dim=6, layers=2, heads=2, kv_heads=1, head_dim=4, hidden=7)


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
    dist.destroy_process_group()


def batch(config):
    tokens = torch.arange(2 * 6).reshape(2, 6) % config.vocab
    return tokens[:, :-1], tokens[:, 1:]


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = llama.build(SMALL)
    torch.manual_seed(2)
    again, other = llama.build(SMALL), llama.build(SMALL, seed=1)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters())]
    assert all(same)
    assert not torch.equal(first.output.weight, other.output.weight)


def test_no_position_sees_what_follows():
    model = llama.build(SMALL)
    hidden = []
    model.norm.register_forward_hook(lambda _module, _inputs, out: hidden.append(out.detach()))
    tokens, targets = batch(SMALL)
    model(tokens, targets)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % SMALL.vocab
    model(changed, targets)
    assert torch.equal(hidden[0][:, :-1], hidden[1][:, :-1])
    assert not torch.equal(hidden[0][:, -1], hidden[1][:, -1])


def test_rotation_makes_scores_depend_on_distance_alone():
    torch.manual_seed(0)
    cos, sin = llama.build(SMALL).angles(9)
    query, key = torch.randn(4), torch.randn(4)

    def score(at, of):
        return llama.rotate(query, cos[at], sin[at]) @ llama.rotate(key, cos[of], sin[of])

    assert torch.allclose(score(7, 5), score(3, 1), atol=1e-5)
    assert not torch.allclose(score(7, 5), score(7, 2), atol=1e-3)


@pytest.mark.parametrize("placements", [simple_fsdp.FSDP, simple_fsdp.DDP, simple_fsdp.HSDP])
def test_sharding_changes_no_value(mesh, placements):
    if len(placements) == 2:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    plain, sharded = llama.build(SMALL), llama.build(SMALL)
    simple_fsdp.shard(sharded, mesh, torch.float32, torch.float32, placements)
    losses = [model(*batch(SMALL)) for model in (plain, sharded)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    for (name, a), (other, b) in zip(plain.named_parameters(), sharded.named_parameters()):
        assert name == other
        assert torch.equal(a.grad, b.grad.to_local()), name


def test_modules_of_one_kind_share_one_sharded_class(mesh):
    model = simple_fsdp.shard(llama.build(SMALL), mesh, torch.float32, torch.float32)
    again = simple_fsdp.shard(llama.build(SMALL), mesh, torch.bfloat16, torch.float32)
    norms = {type(layer.ffn_norm) for m in (model, again) for layer in m.layers} | {type(model.norm)}
    assert len(norms) == 1
    # ... but not their settings: the second model gathers in bf16.
    assert model.norm.weight.dtype == torch.float32
    assert again.norm.weight.dtype == torch.bfloat16


def test_what_was_sharded_before_keeps_its_own_dtypes(mesh):
    model = llama.build(SMALL)
    simple_fsdp.shard(model.norm, mesh, torch.float32, torch.float32)
    simple_fsdp.shard(model, mesh, torch.bfloat16, torch.float32)
    assert model.norm.weight.dtype == torch.float32 and model.output.weight.dtype == torch.bfloat16


def test_a_mesh_of_other_dimensions_than_the_placements_is_refused(mesh):
    with pytest.raises(ValueError, match="the mesh has 1 dimensions, 2 were expected"):
        simple_fsdp.shard(llama.build(SMALL), mesh, torch.bfloat16, torch.float32, simple_fsdp.HSDP)


def test_tensor_parallel_parts_are_sharded_and_read_as_they_were(mesh):
    both = init_device_mesh("cpu", (1, 1), mesh_dim_names=("fsdp", "tp"))
    model, plain = llama.FeedForward(SMALL), llama.FeedForward(SMALL)
    plain.load_state_dict(model.state_dict())
    parallelize_module(model, both["tp"], {"w1": ColwiseParallel(), "w3": ColwiseParallel(), "w2": RowwiseParallel()})
    simple_fsdp.shard(model, both["fsdp"], torch.float32, torch.float32)
    assert model._modules["w2"]._parameters["weight"].device_mesh.mesh_dim_names == ("fsdp",)
    assert model.w2.weight.device_mesh.mesh_dim_names == ("tp",) and model.w2.weight.placements == (Shard(1),)
    x = torch.randn(3, SMALL.dim, generator=torch.Generator().manual_seed(1))
    out = model(x)
    assert torch.equal(out, plain(x))
    out.sum().backward()
    plain(x).sum().backward()
    for a, b in zip(plain.parameters(), model.parameters()):
        assert torch.equal(a.grad, b.grad.to_local())


def test_tied_weights_are_refused_by_name_and_nothing_is_sharded(mesh):
    model = llama.build(SMALL)
    model.output.weight = model.tok_embeddings.weight
    with pytest.raises(ValueError, match=r"output\.weight and tok_embeddings\.weight are one parameter"):
        simple_fsdp.shard(model, mesh, torch.bfloat16, torch.float32)
    assert type(model.tok_embeddings) is torch.nn.Embedding
    assert model.output.weight is model.tok_embeddings.weight
