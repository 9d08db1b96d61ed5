"""Holds every #include to the layers below; an include that points the wrong way fails with its file and line.

deps_test.py holds includes to what CMake is told of each target.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent

# A folder uses itself and what its line names, all of which stands above it: so there is no cycle. What a line names and no file
# uses fails, too.
LAYERS = """
proto:
passes/base:
passes/ir: passes/base
passes/plan: passes/{base,ir}
passes/cost: passes/{base,ir}
passes/sim: passes/{base,ir,plan,cost}
passes/pass: passes/{base,ir,plan,cost,sim}
passes/pass/units: passes/{base,ir,plan,sim,pass}
passes/pass/greedy: passes/{base,ir,plan,cost,sim,pass}
passes/pass/overlap: passes/{base,ir,plan,sim,pass}
passes/pass/overlap_bucket: passes/{base,ir,plan,sim,pass}
passes/pass/dense: passes/{base,sim,pass,pass/units}
passes/auto: passes/{base,ir,plan,cost,sim,pass}
passes/pass/upstream: passes/{base,ir,cost,pass,pass/greedy,pass/overlap,pass/overlap_bucket}
passes/modes: passes/{base,pass,auto,pass/upstream}
passes: passes/{base,ir,plan,cost,sim,pass,pass/units,modes}
passes/text: passes/{base,ir,plan,cost}
passes/io: proto passes/{base,ir,plan,cost,sim,pass}
passes/tools: passes passes/{base,plan,cost,sim,pass,modes,text,io}
server/process:
server/base: proto passes server/process
server/store: passes/base server/base
server/store/postgres: passes/base server/store
server/identity: passes/base server/base
server/config: passes/base
server/tenants: passes/base server/{base,identity,config}
server/cluster: proto passes/base server/{base,store}
server/graphs: proto passes/{base,ir,io} server/{base,config,tenants}
server/costs: proto passes/{base,cost,io} server/{base,store,config}
server/plans: proto passes passes/{base,ir,plan,cost,pass,io} server/{base,store,config,tenants,cluster,graphs,costs}
server/jobs/machine: proto passes passes/{base,pass} server/{base,config,graphs,costs,plans}
server/jobs: proto passes passes/{base,ir,io} server/{base,store,config,tenants,graphs,costs,plans,jobs/machine}
server/agents: passes/base server/{base,store}
server/admin: proto passes passes/{base,cost,io} server/{process,base,store,config,tenants,cluster,costs,plans,jobs/machine,jobs}
server/rpc: proto passes passes/{base,ir,pass,io} server/{base,store,identity,config,tenants,cluster,graphs,costs,plans,jobs/machine,jobs,agents,admin}
server: passes/base server/{process,base,store,store/postgres,identity,config,tenants,cluster,graphs,costs,plans,jobs,agents,admin,rpc}
client/render: passes/{ir,plan,sim}
client/cli: passes/base
client: proto passes/{base,ir,plan,pass,io}
client/ctl: passes passes/{base,ir,plan,cost,sim,pass,modes,io} server/{store,store/postgres} client client/{render,cli}
gpu_agent/pack: passes/base
gpu_agent/device: passes/base gpu_agent/pack
gpu_agent/comm: passes/base gpu_agent/device
gpu_agent/exec: passes/base gpu_agent/{device,pack,comm}
gpu_agent/backend: passes/base gpu_agent/{device,comm,exec}
gpu_agent/cuda: passes/base gpu_agent/{device,pack,comm,exec}
gpu_agent/telemetry: passes/base gpu_agent/{device,comm}
gpu_agent/library: passes/base gpu_agent/{device,comm,exec,telemetry}
gpu_agent/profiler: passes/base gpu_agent/{comm,telemetry}
gpu_agent/run: passes/{base,ir,plan,cost,sim,io} client client/cli gpu_agent/{device,pack,comm,exec,backend}
gpu_agent/daemon: passes/{base,cost,io} server/process client client/cli gpu_agent/{device,pack,comm,backend,telemetry,run}
gpu_agent: client/cli gpu_agent/{run,daemon}
"""


def expand(word: str) -> list[str]:
    """Of "passes/{base,ir}"."""
    room, brace, inner = word.partition("{")
    return [room + part for part in inner.rstrip("}").split(",")] if brace else [word]


ALLOWED = {folder: [each for word in names.split() for each in expand(word)]
           for folder, _, names in (line.partition(":") for line in LAYERS.strip().splitlines())}
# gRPC's headers are heavy and its types contagious: only these see them.
GRPC_FILES = re.compile(r"^(server/server\.cc|server/rpc/\w+\.(cc|h)|client/\w*(_client|channel|_call)\.(cc|h))$")
# It costs seconds a unit: client/cli/flags.h says the same to everybody else.
CLI_FILES = re.compile(r"^(client/cli/flags|server/main|passes/tools/bucketd_opt|passes/tools/opt_flags)\.cc$")
# Agreement's state machine: what happens and when comes in with events.
PURE = re.compile(r"^server/jobs/machine/")
IMPURE = re.compile(r"<(mutex|thread|condition_variable|future|atomic)>|absl/synchronization/|server/base/(timers|worker_pool)\.h|plan_broker\.h|::now\(\)|LogLine\(")
# The same of nlohmann's library and client/cli/json.h.
JSON_FREE = re.compile(r"^(client/(?!cli/json\.(h|cc)$)|gpu_agent/)")
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


def used() -> dict[str, set[str]]:
    """What the files of each folder include of other folders."""
    found: dict[str, set[str]] = {folder: set() for folder in ALLOWED}
    for file in sources():
        own = folder_of(file.relative_to(ROOT).as_posix())
        found[own].update(folder_of(match[1]) for line in file.read_text().splitlines() if (match := INCLUDE.match(line)))
        found[own] -= {own, ""}
    return found


def closure(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    reached = {name: set(below) for name, below in edges.items()}
    for name in reached:
        pending = list(reached[name])
        while pending:
            more = edges.get(pending.pop(), set()) - reached[name]
            reached[name] |= more
            pending += more
    return reached


def sources() -> list[pathlib.Path]:
    rooms = [p for p in ROOT.iterdir() if p.is_dir() and p.name in {key.split("/")[0] for key in ALLOWED}]
    return sorted(p for room in rooms for suffix in ("*.h", "*.cc", "*.cu") for p in room.rglob(suffix))


def test_includes_follow_the_layers():
    files = sources()
    assert len(files) > 30, "the sources were not found"
    found = [v for f in files for v in violations(f.relative_to(ROOT).as_posix(), f.read_text())]
    assert not found, "\n" + "\n".join(found)


def test_a_permission_is_used_and_of_what_stands_above():
    names = list(ALLOWED)
    uses = used()
    for position, (folder, allowed) in enumerate(ALLOWED.items()):
        assert not set(allowed) - set(names[:position]), f"{folder}: what it names does not stand above it"
        assert not set(allowed) - uses[folder], f"{folder}: no file uses {sorted(set(allowed) - uses[folder])}"


def test_the_drawing_in_gpu_agents_readme_is_right():
    """Without passes/, and with what a folder reaches through others."""
    text = re.search(r"^Dependencies: ([^.]*)\.", (ROOT / "gpu_agent" / "README.md").read_text(), re.MULTILINE)[1]
    drawn: dict[str, set[str]] = {}
    for chain in text.split(";"):
        below: set[str] = set()
        for names in chain.split("<-"):
            here = {name.strip() for name in names.split(",")}
            for name in here:
                drawn.setdefault(name, set()).update(below)
            below = here
    room = "gpu_agent/"
    said = {folder.removeprefix(room): {each.removeprefix(room).replace("client/cli", "client") for each in allowed if not each.startswith("passes")}
            for folder, allowed in ALLOWED.items() if folder.startswith(room)}
    found = closure(drawn)
    assert {name: found[name] for name in said} == closure(said)


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
