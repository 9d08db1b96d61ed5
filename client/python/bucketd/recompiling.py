"""What Dynamo does with code that it will not compile once more: it runs it as it is, on this rank alone.

Without a plan that costs time and no more: eager code launches the collectives of the compiled one, in its order. Beside the other
ranks' buckets it launches others than they do, which is a hang or mixed-up sums. So what a backend compiled to run by a plan may not
be run eagerly from then on: that is an EagerFallback, which says what to do, and ranks that wait for this one hear of it. What other
backends compile is left alone.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import types
import weakref
from collections.abc import Callable

import torch
from torch._dynamo import config, convert_frame, eval_frame

from .agreement import Agreement
from .errors import EagerFallback

log = logging.getLogger("bucketd")

_held: dict[weakref.ref, Agreement] = {}  # backends with a plan in force, and whom it is shared with


def watch() -> None:
    """From then on, if not already, every compilation is looked at before it begins. Dynamo has a place for that, of which
    torch._dynamo.reset() leaves what is there."""
    if _begins not in (torch._dynamo.utils.get_hook_for_recompile_user_context() or ()):
        torch._dynamo.register_hook_for_recompile_user_context(_begins)


def backend_here() -> object:
    """What torch.compile was given to compile with, where it is compiling; it may be somebody's function that calls ours."""
    compiling = _compilation()
    if compiling is None:
        return None
    whole = eval_frame.innermost_backend(compiling["compiler_fn"])
    return getattr(whole, "compiler_fn", whole)  # torch.compile wraps what it is given anew each time


def hold(backend: object, agreement: Agreement) -> None:
    """What `backend`, of backend_here(), compiles runs by a plan."""
    if backend is not None and len(agreement.ranks) > 1 and _holds(backend) is None:
        _held[weakref.ref(backend, lambda gone: _held.pop(gone, None))] = agreement


def errors_are_errors() -> None:
    """A rank whose compilation fails would run eagerly, too, where Dynamo is told to suppress errors."""
    if config.suppress_errors:
        config.suppress_errors = False
        log.warning("bucketd: torch._dynamo.config.suppress_errors (TORCHDYNAMO_SUPPRESS_ERRORS) is off from here on: a rank that goes on "
                    "without what failed to compile launches other collectives than the plan of the others has")


def never_eager(run: Callable, planned: threading.Event) -> Callable:
    """`run`, a compiled graph that has a plan or, once its backward is compiled, may have one, for as long as no stance has ranks run
    eagerly what is not compiled yet. Those may not be asked, so those that are compiled say it."""

    @functools.wraps(run)
    def checked(*args):
        if planned.is_set() and eval_frame._stance.stance == "eager_on_recompile":
            raise EagerFallback(
                'torch.compiler.set_stance("eager_on_recompile") has a rank run eagerly what another one runs by a plan: use '
                '"fail_on_recompile", which is an error there, or "force_eager" on all ranks')
        return run(*args)

    return checked


def _begins() -> str:
    """Dynamo calls this where it is about to compile, for a word on what the program is doing."""
    agreement = _holds(backend_here())
    if agreement is not None:
        errors_are_errors()
        _check_limit(_compilation(), agreement)
    return "bucketd"


def _holds(backend: object) -> Agreement | None:
    return next((agreement for one, agreement in list(_held.items()) if one() is backend), None)


def _check_limit(compiling: dict, agreement: Agreement) -> None:
    from torch._dynamo.cache_size import exceeds_recompile_limit

    size, code = compiling["cache_size"], compiling["code"]
    exceeded, limit = exceeds_recompile_limit(size, compiling["compile_id"])
    where = f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
    help_ = (f"raise torch._dynamo.config.{limit or 'recompile_limit'}, or see with TORCH_LOGS=recompiles what changes from step to "
             "step, and keep it from that or mark it dynamic")
    if exceeded:
        error = EagerFallback(
            f"{where} would be compiled more often than torch._dynamo.config.{limit}, {getattr(config, limit)}, allows, and this rank "
            f"would run it eagerly beside the plan of the others: {help_} ({compiling.get('recompile_reason')})")
        agreement.say_stopped(f"stopped: {type(error).__name__}: {error}")
        raise error
    if size.will_compilation_exceed_specific_limit(config.recompile_limit - 1):
        log.warning("bucketd: %s is compiled for the last time that torch._dynamo.config.recompile_limit, %d, allows; the next time is an "
                    "error, since a rank may not run eagerly beside a plan: %s", where, config.recompile_limit, help_)


def _compilation() -> dict | None:
    """What Dynamo's compilation, the innermost one that is under way, knows of itself. It passes it to nobody."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not convert_frame._compile.__code__:
        frame = frame.f_back
    return frame.f_locals if frame is not None else None
