"""bucketd: bucketing and ordering plans for the collectives of sharded PyTorch training steps."""

from .client import CLIENT_VERSION as __version__
from .client import PlannerClient
from .degraded import counters
from .errors import AgreementError, BucketdError, EmbeddedError, ExecutorError, GraphRefused, PlannerError, PlanRejected
from .files import load_graph, save_graph
from .job import Job, release
from .settings import SettingsArgs

__all__ = [
    "AgreementError",
    "BucketdError",
    "EmbeddedError",
    "ExecutorError",
    "GraphRefused",
    "Job",
    "PlanRejected",
    "PlannerClient",
    "PlannerError",
    "SettingsArgs",
    "__version__",
    "backend",
    "context",
    "counters",
    "joint_step",
    "load_graph",
    "plan_pass",
    "release",
    "save_graph",
    "trace_joint",
]


def __getattr__(name):
    # torch is heavy, and files can be planned without it.
    if name in ("backend", "context", "plan_pass"):
        from . import torch_backend

        return getattr(torch_backend, name)
    if name in ("joint_step", "trace_joint"):
        from . import joint

        return getattr(joint, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
