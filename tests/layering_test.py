"""Holds every #include to the layers of README.md; an include that points the wrong way fails with its file and line.

A folder may include itself and what is listed for it here. deps_test.py holds includes to what CMake is told of each target.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

CORE = ["passes/base", "passes/ir", "passes/plan", "passes/cost", "passes/sim", "passes/pass"]
PASSES = ["passes/pass/units", "passes/pass/greedy", "passes/pass/overlap", "passes/pass/overlap_bucket", "passes/pass/dense"]
PLANNER = CORE + ["passes/auto", "passes/modes", "passes"]
# Each may use what stands before it.
SERVER = ["server/base", "server/config", "server/tenants", "server/graphs", "server/costs", "server/plans", "server/jobs"]
AGENT = ["gpu_agent/device", "gpu_agent/pack", "gpu_agent/comm", "gpu_agent/exec", "gpu_agent/backend"]
ALLOWED = {
    "proto": [],
    **{folder: CORE[:k] for k, folder in enumerate(CORE)},
    **{folder: CORE for folder in PASSES},
    "passes/pass/dense": CORE + ["passes/pass/units"],
    "passes/auto": CORE,
    "passes/pass/upstream": CORE + ["passes/pass/greedy", "passes/pass/overlap_bucket"],
    "passes/modes": CORE + ["passes/auto", "passes/pass/upstream"],
    "passes": CORE + ["passes/modes", "passes/pass/units"],  # planner.{h,cc}
    "passes/text": CORE[:4],
    "passes/io": CORE + ["proto"],
    "passes/tools": PLANNER + ["passes/io", "passes/text"],
    "server/process": [],  # for every daemon: nothing of the server is in it
    "server/store": CORE[:1] + ["server/base"],  # store_metrics
    "server/store/postgres": ["passes/base", "server/store"],  # libpq is seen by nobody else
    "server/base": PLANNER + ["proto", "server/process"],
    "server/identity": CORE[:1] + ["server/base"],
    "server/config": CORE[:1],
    "server/tenants": CORE[:1] + ["server/identity", *SERVER[:2]],
    "server/cluster": CORE[:1] + ["proto", "server/base", "server/store"],
    "server/graphs": CORE + ["passes/io", "proto", *SERVER[:3]],
    "server/costs": CORE + ["passes/io", "proto", "server/store", *SERVER[:3]],
    "server/plans": PLANNER + ["passes/io", "proto", "server/store", "server/cluster", *SERVER[:5]],
    "server/jobs/machine": PLANNER + ["proto", *SERVER[:6]],
    "server/jobs": PLANNER + ["passes/io", "proto", "server/store", "server/jobs/machine", *SERVER[:6]],
    "server/agents": CORE[:1] + ["server/base", "server/store"],
    "server/admin": PLANNER + ["passes/io", "proto", "server/store", "server/cluster", "server/process", *SERVER],
    "server/rpc": PLANNER + ["passes/io", "proto", "server/store", "server/cluster", *SERVER, "server/identity", "server/jobs/machine", "server/agents", "server/admin"],
    "server": CORE[:1] + [*SERVER, "server/cluster", "server/identity", "server/process", "server/store", "server/store/postgres", "server/agents", "server/admin",
               "server/rpc"],  # server.{h,cc}
    "client/render": CORE[:5],
    "client/cli": ["passes/base"],
    "client/ctl": CORE + [
        "passes/modes", "passes/pass/greedy", "passes", "passes/io", "client", "client/cli", "client/render", "server/store",
        "server/store/postgres",
    ],
    "client": CORE + ["passes/io", "proto"],
    "gpu_agent/device": ["passes/base"],
    "gpu_agent/pack": ["passes/base"],
    "gpu_agent/comm": ["passes/base", "gpu_agent/device"],
    "gpu_agent/exec": ["passes/base", "passes/io", *AGENT[:3]],  # plan_reader
    "gpu_agent/backend": ["passes/base", "gpu_agent/device", "gpu_agent/comm", "gpu_agent/exec"],
    "gpu_agent/cuda": ["passes/base", *AGENT[:4]],  # copier.h
    "gpu_agent/telemetry": ["passes/base", "gpu_agent/comm", "gpu_agent/device"],  # socket.h, steady.h
    "gpu_agent/library": ["passes/base", "gpu_agent/comm", "gpu_agent/device", "gpu_agent/exec", "gpu_agent/telemetry"],
    "gpu_agent/profiler": ["passes/base", "gpu_agent/comm", "gpu_agent/telemetry"],  # socket.h, nccl_name.h
    "gpu_agent/run": CORE[:5] + ["passes/io", "client", "client/cli", *AGENT],
    "gpu_agent/daemon": ["passes/base", "passes/cost", "passes/io", "client", "client/cli", "server/process", *AGENT, "gpu_agent/run", "gpu_agent/telemetry"],
    "gpu_agent": ["client/cli", "gpu_agent/run", "gpu_agent/daemon"],  # main.cc
}
# gRPC's headers are heavy and its types contagious: only these see them.
GRPC_FILES = re.compile(r"^(server/server\.cc|server/rpc/\w+\.(cc|h)|client/\w*(_client|channel|_call)\.(cc|h)|gpu_agent/\w*_service\.cc)$")
# It costs seconds a unit: client/cli/flags.h says the same to everybody else.
CLI_FILES = re.compile(r"^(client/cli/flags\.cc|server/main\.cc|passes/tools/\w+\.(cc|h))$")
# Agreement's state machine: what happens and when comes in with events.
PURE = re.compile(r"^server/jobs/machine/")
IMPURE = re.compile(r"<(mutex|thread|condition_variable|future|atomic)>|absl/synchronization/|server/base/(timers|worker_pool)\.h|plan_broker\.h|::now\(\)|LogLine\(")
# The same of nlohmann's library and client/cli/json.h.
JSON_FREE = re.compile(r"^(client/(?!cli/json\.(h|cc)$)|gpu_agent/)")
SKIPPED = {"tests"}
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]')


def folder_of(path: str) -> str:
    """The layer that a file belongs to: the longest listed folder that holds it."""
    parts = pathlib.PurePosixPath(path).parent.parts
    for k in range(len(parts), 0, -1):
        if "/".join(parts[:k]) in ALLOWED:
            return "/".join(parts[:k])
    return ""


def violations(path: str, text: str) -> list[str]:
    """Every line of one file that includes against the arrows."""
    own = folder_of(path)
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if PURE.match(path) and IMPURE.search(line):
            found.append(f"{path}:{number}: the state machine has no threads, locks or clock")
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        where = f"{path}:{number}: includes {target}"
        if target.startswith(("grpcpp/", "grpc/")) or target.endswith(".grpc.pb.h"):
            if not GRPC_FILES.match(path):
                found.append(f"{where}: gRPC belongs to the service adapters")
            continue
        if target.startswith("CLI/") and not CLI_FILES.match(path):
            found.append(f"{where}: command lines are said with client/cli/flags.h")
        if target.startswith("nlohmann/") and JSON_FREE.match(path):
            found.append(f"{where}: JSON is said with client/cli/json.h")
        other = folder_of(target)
        if other and other != own and other not in ALLOWED[own]:
            found.append(f"{where}: {own} may not use {other}")
    return found


def sources() -> list[pathlib.Path]:
    rooms = [p for p in ROOT.iterdir() if p.is_dir() and p.name in {key.split("/")[0] for key in ALLOWED} - SKIPPED]
    return sorted(p for room in rooms for suffix in ("*.h", "*.cc", "*.cu") for p in room.rglob(suffix))


def test_includes_follow_the_layers():
    files = sources()
    assert len(files) > 30, "the sources were not found"
    found = [v for f in files for v in violations(f.relative_to(ROOT).as_posix(), f.read_text())]
    assert not found, "\n" + "\n".join(found)


def test_a_wrong_include_is_seen():
    assert violations("passes/ir/graph.cc", '#include "passes/plan/plan.h"\n')
    assert violations("passes/sim/memory.cc", '#include "proto/plan.pb.h"\n')
    assert violations("passes/io/fx_json.cc", "#include <grpcpp/grpcpp.h>\n")
    assert violations("server/plans/plan_cache.h", "#include <grpcpp/grpcpp.h>\n")
    assert violations("server/jobs/machine/scope.cc", "  now = Clock::now();\n")
    assert violations("client/ctl/plan.cc", '#include "server/server.h"\n')
    assert violations("client/ctl/plan.cc", '#include "CLI/CLI.hpp"\n')
    assert violations("client/ctl/plan.cc", '#include "nlohmann/json.hpp"\n')
    assert not violations("client/cli/json.cc", '#include "nlohmann/json.hpp"\n')
    assert violations("gpu_agent/comm/ring.cc", '#include "gpu_agent/exec/executor.h"\n')
    assert violations("gpu_agent/run/sweep.cc", '#include "gpu_agent/daemon/daemon.h"\n')
    assert not violations("passes/io/fx_json.cc", '#include "passes/ir/graph.h"\n')


if __name__ == "__main__":
    bad = [v for f in sources() for v in violations(f.relative_to(ROOT).as_posix(), f.read_text())]
    print("\n".join(bad) or "layers hold")
    sys.exit(bool(bad))
