"""What can go wrong, by what the caller can do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # most errors are of no call, and an executor runs where gRPC is not
    import grpc

# What a trainer passes to bucketd.backend (plan_pass, joint_step) to get past an error of this reason.
_ARGUMENTS = {
    "UNREACHABLE": "address= names the planner; without it the ranks start one of their own",
    "DEADLINE": "deadline= is how many seconds it may take",
    "RANKS_MISSING": "deadline= is how many seconds ranks wait for each other",
    "JOB_INVALID": "job=bucketd.Job(id, generation) says which job this is",
    "PLAN_IMPOSSIBLE": "memory_limit=, mode=, buckets= and strict_coverage= are what a plan has to keep to",
    "PROFILE_UNKNOWN": "cost_profile= names one",
    "GRAPH_TOO_LARGE": "address= of a planner that takes more",
    "EMBEDDED_PLANNER": "address= names a planner that runs",
}

# Of those who ask: a job that went without a plan instead would never hear of it.
_MISTAKES = ("OPTIONS_INVALID", "PROFILE_UNKNOWN")

# Seconds, of what a server asks for: one that asks for none is not called without pause.
_LEAST_PAUSE, _MOST_PAUSE = 0.05, 24 * 3600.0
_MOST_TEXT = 8192  # letters, of what a server says


class BucketdError(RuntimeError):
    """The base of everything that this package raises on purpose."""

    # Whether fallback="unplanned" covers it: there is no plan, and the untouched graph is still right.
    leaves_unplanned = False

    reason = "ERROR"


class PlannerError(BucketdError):
    """The planner refused, or could not be asked.

    `reason` is one of the service's reasons (proto/REASONS.md), or one of the client's own: UNREACHABLE (nobody
    answers at the address), DEADLINE (no answer in time), PROTOCOL (an answer that makes no sense), UNPLANNED (planning
    is switched off: every rank of the job runs its graph as it is), RANK0 (the rank that plans for all has no plan).
    """

    def __init__(self, reason: str, message: str, metadata: dict[str, str] | None = None,
                 code: grpc.StatusCode | None = None, retry_after: float | None = None, answered: bool = False):
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.leaves_unplanned = reason not in _MISTAKES
        self.message = message
        self.metadata = dict(metadata or {})
        self.code = code
        self.retry_after = retry_after  # seconds, where the service says so, or the address was given up until then
        self.answered = answered  # a server said so

    def after(self, earlier: PlannerError) -> PlannerError:
        """The same, which also says what went before it."""
        return PlannerError(self.reason, f"{self.message}; before: {earlier}", self.metadata, self.code, self.retry_after, self.answered)


class EmbeddedError(BucketdError):
    """The private planner could not be started or reached."""

    leaves_unplanned = True
    reason = "EMBEDDED_PLANNER"


class GraphRefused(BucketdError):
    """The graph cannot be described to a planner; the message names the node."""

    leaves_unplanned = True
    reason = "GRAPH_REFUSED"


class PlanRejected(BucketdError):
    """A plan is not one for this graph, or would change what the step computes. Nothing was touched."""

    reason = "PLAN_REJECTED"

    def __init__(self, what: str, where: str = ""):
        super().__init__(f"plan rejected: {where}: {what}" if where else f"plan rejected: {what}")


class InductorOrderError(BucketdError):
    """Inductor's code launches collectives in another order than the plan. Ranks may not have one order any more: nothing of it
    was run."""

    reason = "INDUCTOR_ORDER"


class EagerFallback(BucketdError):
    """This rank would run eagerly what the others run by a plan, and launch other collectives than they do. Nothing of it was run."""

    reason = "EAGER_FALLBACK"


class BackwardLater(BucketdError):
    """Nothing is wrong: PyTorch, which would compile a backward before it is called, takes it for a reason to wait until then."""

    reason = "BACKWARD_LATER"


class ExecutorError(BucketdError):
    """The executor cannot run this plan here, or met an error: a peer that died, a bucket that took too long. After that
    nothing runs on it any more."""

    reason = "EXECUTOR"


class AgreementError(BucketdError):
    """The ranks do not hold one plan for one graph, or some of them said nothing in time. `reason` is the service's
    (RANKS_DIFFER, RANKS_MISSING, GENERATION_OVER, JOB_INVALID) where it was the one to see that."""

    def __init__(self, message: str, reason: str = "NO_AGREEMENT"):
        super().__init__(message)
        self.reason = reason


class InterruptedRank(AgreementError):
    """A rank that the others wait for was interrupted (Ctrl-C), or cannot go on; the message says which, and why."""


def advise(error: Exception, fallback: str) -> None:
    """Adds to the message which argument helps, where one does."""
    if not isinstance(error, BucketdError):
        return
    words = [_ARGUMENTS[error.reason]] if error.reason in _ARGUMENTS else []
    if error.leaves_unplanned and fallback == "error":
        words.append("fallback=\"unplanned\" trains without a plan")
    added = f" ({'; '.join(words)})" if words else ""
    if not str(error).endswith(added):  # one error may stop several graphs
        error.args = (f"{error}{added}",)


def from_rpc_error(error: grpc.RpcError, address: str, method: str) -> PlannerError:
    """The service's reason, from google.rpc.Status in the trailing metadata; else one derived from the code."""
    import grpc

    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = _shown((error.details() if hasattr(error, "details") else "") or "")
    info, retry_after = _error_info(error)
    if info is not None:
        return PlannerError(info.reason, details, dict(info.metadata), code, retry_after, answered=True)
    where = f"{method} at {address}"
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return PlannerError("DEADLINE", f"no answer in time from {where}", code=code)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return PlannerError("UNREACHABLE", f"{where}: {details}", code=code)
    return PlannerError("PROTOCOL", f"{where}: {code.name}: {details} (expected what a bucketd answers: is that one?)", code=code,
                        answered=True)


def _shown(text: str) -> str:
    """Whoever wrote it, nothing that a terminal obeys, and not without end."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text[:_MOST_TEXT])


def _error_info(error):
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2, status_pb2

    trailer = dict(error.trailing_metadata() or ()) if hasattr(error, "trailing_metadata") else {}
    info, retry_after = None, None
    try:
        for detail in status_pb2.Status.FromString(trailer.get("grpc-status-details-bin", b"")).details:
            found, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            if detail.Unpack(found):
                info = found
            elif detail.Unpack(retry):
                retry_after = min(max(retry.retry_delay.ToNanoseconds() / 1e9, _LEAST_PAUSE), _MOST_PAUSE)
    except DecodeError:  # a damaged trailer: the code and its text remain
        return None, None
    return info, retry_after
