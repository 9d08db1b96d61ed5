"""What a user may ask for, checked where it is said rather than where it is used."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from . import addresses
from ._wire.proto import plan_pb2, planner_pb2
from .client import DEFAULT_DEADLINE
from .job import Job, resolve
from .tls import Tls

if TYPE_CHECKING:
    from typing_extensions import Unpack

_KNOWN = {
    "mode": ("auto", "transformer_block", "manual", "greedy", "overlap", "none"),
    "fallback": ("error", "unplanned"),
    "embedded": (None, "rank0"),
    "numerics": ("eager_order", "exact", "free"),
    "executor": ("", "bucketd"),
}
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


class SettingsArgs(TypedDict, total=False):
    """The keyword arguments that backend(), plan_pass() and joint_step() have in common; all may be left out.

    mode           which collectives share a bucket: "auto", the best that a search finds, or one of the classic modes:
                   "transformer_block", "manual", "greedy", "overlap", "none"
    address        of the planner, "host:port" or "unix:/path", or of several that share a store: "a:9460,b:9460", or
                   "dns:///name:port" for all that the name stands for; None: the ranks of one node start a private one
    tls            bucketd.Tls(ca, cert, key, token), the files for a planner with TLS; None: what BUCKETD_CLIENT_CA,
                   BUCKETD_CLIENT_CERT, BUCKETD_CLIENT_KEY and BUCKETD_CLIENT_TOKEN_FILE name
    numerics       what a plan may do to sums of gradients: "eager_order" adds them in eager's order of parameters, which gives
                   eager FSDP2's bits where each bucket is one of its units (mode "transformer_block"); "exact" keeps the
                   unplanned graph's bits; "free" neither. The log's line says whose bits a plan has, Plan.bits_text why
    memory_limit   peak memory that a plan may reach: "1.05x", "+5%" (of the peak without a plan), "38GiB", bytes
    fallback       where there is no plan: "error", or "unplanned": all ranks go without, if no rank has another reason to stop, as a
                   mistake in these settings is. The same on every rank
    embedded       "rank0": without an address, on several nodes, rank 0 plans for all
    deadline       seconds that one graph's plan may take (300)
    cost_profile   of the planner: NAME (its first version), NAME@3, NAME@latest (the promoted one); None: its default
    job            what the planner shall know the ranks by: "torchrun" or True (torchrun's name for it; the planner counts its
                   starts), or a bucketd.Job(id, generation)
    tenant         whose plans these are, where several teams share a planner
    ranks          those that run this program; None: all
    comm_backend   whose order of sums numerics speak of, "gloo" or "nccl"; "": that of the graph's first group
    twin_groups    True: reduce-scatters of gradients run on groups of their own, over the same ranks, beside the all-gathers
                   instead of between them; the plan counts the wires of both as its own. They end with torch.distributed
    executor       what runs the buckets: "", torch.distributed, or "bucketd", our own executor (on the CPU for ranks of
                   one host; on GPUs no whole training has been shown to run). What it has no dtype or operation for, or would
                   add in another order than the plan promises, stays with torch.distributed; a GPU that it cannot use is an error
    executor_timeout  seconds that a bucket may take there, peers' late arrival included (600)
    agent          the socket of this node's bucket-agent, which then hears what each bucket took, and from there Prometheus and the
                   planner, by the name that BUCKETD_JOB has, or else `job`; None: what BUCKETD_AGENT names, if anything. Of buckets
                   that executor="bucketd" runs. Training goes on without one that cannot be told, with a warning
    options        every other option of the planner that `bucketctl plan --help` lists, by name: {"max_topo_span": 800,
                   "bucket_all_reduce": False}
    buckets        of mode "manual", what shares a bucket: "tok_embeddings,layers.[0-31],norm+output", or a list with an entry a
                   bucket, which is a name, a module, or a list of them (modules want model=, where the function has that). Names may
                   hold globs (no regular expressions): * is any component, [0-31] counts
    prefetch_forward   of modes "transformer_block", "manual" and "greedy": how many buckets ahead gathers start in the forward (1)
    prefetch_backward  the same in the backward (1)
    defer_reduce_scatter  of the same modes: how many buckets later the reductions of gradients are waited for (1)
    reorder        of the same modes: the buckets whose collectives may move, "all", "none", or names as in `buckets`
    strict_coverage  True: in modes "transformer_block" and "manual" a collective that no bucket holds is an error
    """

    mode: Literal["auto", "transformer_block", "manual", "greedy", "overlap", "none"]
    address: str | None
    tls: Tls | None
    numerics: Literal["eager_order", "exact", "free"]
    memory_limit: str | int | None
    fallback: Literal["error", "unplanned"]
    embedded: Literal["rank0"] | None
    deadline: float
    cost_profile: str | None
    job: Job | Literal["torchrun"] | bool | None
    tenant: str
    ranks: Sequence[int] | None
    comm_backend: str
    twin_groups: bool
    executor: Literal["", "bucketd"] | None
    executor_timeout: float
    agent: str | None
    options: Mapping[str, object] | None
    buckets: str | Sequence[object]
    prefetch_forward: int | None
    prefetch_backward: int | None
    defer_reduce_scatter: int | None
    reorder: str
    strict_coverage: bool


@dataclasses.dataclass(frozen=True)
class Settings:
    """What SettingsArgs asks for, checked, and fit for a key."""

    mode: str = "auto"
    address: str | None = None
    tls: Tls | None = None
    numerics: str = "eager_order"
    memory_limit: str | int | None = None
    fallback: str = "error"
    embedded: str | None = None
    deadline: float = DEFAULT_DEADLINE
    cost_profile: str = ""
    buckets: str = ""
    prefetch_forward: int | None = None
    prefetch_backward: int | None = None
    defer_reduce_scatter: int | None = None
    reorder: str = "all"
    strict_coverage: bool = False
    comm_backend: str = ""
    tenant: str = ""
    ranks: tuple[int, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    job: Job | None = None
    twin_groups: bool = False
    executor: str = ""
    executor_timeout: float = 600.0
    agent: str = ""

    @classmethod
    def of(cls, **settings: Unpack[SettingsArgs]) -> Settings:
        """TypeError for an unknown argument, ValueError for a value that cannot be; None: the default."""
        known = sorted(SettingsArgs.__annotations__)
        unknown = sorted(set(settings) - set(known))
        if unknown:
            near = difflib.get_close_matches(unknown[0], known, 1, 0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TypeError(f"unknown setting {', '.join(unknown)}{hint}; known are {', '.join(known)}")
        given = {name: value for name, value in settings.items() if value is not None}
        if "ranks" in given:
            given["ranks"] = tuple(given["ranks"])
        if not isinstance(given.get("buckets", ""), str):
            given["buckets"] = bucket_list(given["buckets"])
        if "options" in given:
            given["options"] = option_texts(given["options"])
        return cls(**{**given, "job": resolve(settings.get("job"))})

    def __post_init__(self):
        for name, known in _KNOWN.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {', '.join(map(repr, known))}")
        if self.agent and not self.executor:
            raise ValueError('agent= hears of buckets that executor="bucketd" runs; torch.distributed reports none')
        for name in ("address", "cost_profile", "buckets", "reorder", "comm_backend", "tenant"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise ValueError(f"{name}={value!r}: expected text")
        for name in ("prefetch_forward", "prefetch_backward", "defer_reduce_scatter"):
            _count(name, getattr(self, name))
        _seconds("deadline", self.deadline)
        _seconds("executor_timeout", self.executor_timeout)
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"ranks={list(self.ranks)}: expected each once")
        if self.embedded is not None and self.address is not None:
            raise ValueError("embedded= and address= exclude each other: a planner is either private or at an address")
        if self.embedded is not None and self.job is not None:
            raise ValueError("embedded= and job= exclude each other: where rank 0 plans for all, nobody else asks")
        if self.address is not None:
            addresses.parse(self.address)
        parse_memory_limit(self.memory_limit)

    def plan_options(self, parameter_order: Sequence[str], comm_backend: str) -> planner_pb2.PlanOptions:
        ppm, limit_bytes = parse_memory_limit(self.memory_limit)
        return planner_pb2.PlanOptions(
            mode=self.mode,
            numerics=plan_pb2.Numerics.Value(f"NUMERICS_{self.numerics.upper()}"),
            backend=self.comm_backend or comm_backend,
            memory_limit_ppm=ppm,
            memory_limit_bytes=limit_bytes,
            buckets=self.buckets,
            prefetch_forward=self.prefetch_forward,
            prefetch_backward=self.prefetch_backward,
            defer_reduce_scatter=self.defer_reduce_scatter,
            reorder=self.reorder,
            parameter_order=parameter_order,
            strict_coverage=self.strict_coverage,
            cost_profile=self.cost_profile,
            settings=[planner_pb2.OptionSetting(name=name, value=value) for name, value in self.options],
        )


def bucket_list(buckets: Sequence[object], name_of: Callable[[object], str | None] = lambda entry: None) -> str:
    """A list of entries as the planner reads it. `name_of` knows the names of what is not one; None: it does not."""

    def name(entry: object) -> str:
        found = entry if isinstance(entry, str) else name_of(entry)
        if not found:
            raise TypeError(f"buckets={type(entry).__name__}: expected names or modules of model=, which has to be given with them")
        return found

    entries = [entry if isinstance(entry, Sequence) and not isinstance(entry, str) else [entry] for entry in buckets]
    return ",".join("+".join(map(name, entry)) for entry in entries)


def option_texts(options: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Options as `bucketctl plan --help` names them, with True and False for on and off and None for none; by name."""
    spelled = {True: "on", False: "off", None: "none"}
    return tuple(sorted((str(name), spelled[value] if isinstance(value, bool | None) else str(value))
                        for name, value in options.items()))


def describe_options(options: planner_pb2.PlanOptions) -> dict[str, str]:
    """Field by field, in short text: what ranks compare, and what a difference is reported in."""
    described = {}
    for field in options.DESCRIPTOR.fields:
        value = getattr(options, field.name)
        if field.has_presence and not options.HasField(field.name):
            continue
        if field.name == "parameter_order":
            digest = hashlib.sha256("\0".join(value).encode()).hexdigest()[:12]
            described[field.name] = f"{len(value)} names ({digest})"
        elif field.enum_type is not None:
            described[field.name] = field.enum_type.values_by_number[value].name.split("_", 1)[1].lower()
        else:
            described[field.name] = str(value)
    return described


def parse_memory_limit(limit: str | int | None) -> tuple[int, int]:
    """(parts per million of program order's peak, bytes), of which one is 0: `"1.05x"`, `"+5%"`, `"38GiB"`, bytes."""
    if limit is None:
        return 0, 0
    if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        return 0, limit
    text = str(limit).strip()
    share = re.fullmatch(r"(\d+(?:\.\d+)?)x", text)
    percent = re.fullmatch(r"\+(\d+(?:\.\d+)?)\s*%", text)
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text)
    if share and float(share[1]) > 0:
        return round(1e6 * float(share[1])), 0
    if percent:
        return 1_000_000 + round(1e4 * float(percent[1])), 0
    if isinstance(limit, str) and size and size[2].upper() in _UNITS and float(size[1]) > 0:
        return 0, int(float(size[1]) * _UNITS[size[2].upper()])
    raise ValueError(f"memory_limit={limit!r}: expected a share (\"1.05x\", \"+5%\") or bytes (\"38GiB\", 40802189312)")


def _seconds(name: str, value) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name}={value!r}: expected seconds, more than 0")


def _count(name: str, value) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32):
        raise ValueError(f"{name}={value!r}: expected a number of buckets, 0 or more")
