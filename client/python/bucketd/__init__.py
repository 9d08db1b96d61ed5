"""bucketd: bucketing and ordering plans for the collectives of sharded PyTorch training steps.

backend() is for torch.compile, plan_pass() for a stack of your own, joint_step() for a whole step as one graph. What happens goes to the
logger "bucketd": TORCH_LOGS=bucketd shows every graph's plan, +bucketd what is behind it, on every rank. Without that the first
rank says in one line that there is a plan.
"""

import importlib

from .client import CLIENT_VERSION as __version__
from .client import PlannerClient
from .degraded import counters
from .errors import (
    AgreementError,
    BucketdError,
    EagerFallback,
    EmbeddedError,
    ExecutorError,
    GraphRefused,
    InductorOrderError,
    PlannerError,
    PlanRejected,
)
from .files import load_graph, save_graph
from .job import Job, release
from .settings import SettingsArgs
from .tls import Tls

__all__ = [
    "AgreementError",
    "BucketdError",
    "EagerFallback",
    "EmbeddedError",
    "ExecutorError",
    "GraphRefused",
    "InductorOrderError",
    "Job",
    "PlanRejected",
    "PlannerClient",
    "PlannerError",
    "SettingsArgs",
    "Tls",
    "__version__",
    "apply_to_fully_shard",
    "backend",
    "check_executors",
    "context",
    "counters",
    "inductor",
    "joint_step",
    "load_graph",
    "plan_pass",
    "release",
    "save_graph",
    "trace_joint",
]

_WITH_TORCH = {
    "apply_to_fully_shard": ".fully_shard",
    "backend": ".torch_backend",
    "check_executors": ".bucket_ops",
    "context": ".torch_backend",
    "inductor": ".inductor",
    "joint_step": ".joint",
    "plan_pass": ".torch_backend",
    "trace_joint": ".joint",
}


def __getattr__(name):
    # torch is heavy, and files can be planned without it.
    module = _WITH_TORCH.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import needs_torch

    needs_torch.check(f"bucketd.{name}")
    found = importlib.import_module(module, __name__)
    return found if name == module[1:] else getattr(found, name)
