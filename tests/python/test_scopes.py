"""How a backend numbers what it compiles, in a process that stands for all ranks."""

import pathlib
import sys

import torch
from inductor_counters import fake_mesh
from planners import planner

import bucketd

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples"))

from sharded_model import sharded_model  # noqa: E402


def test_a_graph_without_collectives_has_no_number_so_one_rank_may_compile_it_alone():
    scopes = []
    with planner() as one, fake_mesh() as mesh:
        backend = bucketd.backend(address=one.address, on_plan=lambda planned: scopes.append(planned.scope))
        torch.compile(lambda x: (x.mean(), x.std()), backend=backend)(torch.arange(8.0))
        model = sharded_model(mesh, 4, 6, blocks=1)
        torch.compile(model, backend=backend)(torch.zeros(2, 4, dtype=torch.int64)).backward()
    assert scopes == ["0/fw", "0/bw"]
