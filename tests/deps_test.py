"""Holds every target to the DEPS that CMake is told: what its files include belongs to a target that its DEPS reach.

Every target gets the root as its include path, so the compiler alone would let any of them include anything. Links are PUBLIC,
so what a dependency depends on counts as named; packages (Abseil's parts each for itself) are held to the same.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = ["proto", "passes", "server", "client", "gpu_agent", "tests"]

# What an include of a package wants to see in DEPS. Header-only ones that are on the compiler's own path are not listed.
PACKAGES = {
    "absl/container/flat_hash_map.h": "absl::flat_hash_map",
    "absl/container/flat_hash_set.h": "absl::flat_hash_set",
    "absl/functional/function_ref.h": "absl::function_ref",
    "absl/status/statusor.h": "absl::statusor",
    "absl/status/": "absl::status",
    "absl/strings/str_format.h": "absl::str_format",
    "absl/strings/": "absl::strings",
    "absl/types/span.h": "absl::span",
    "absl/time/": "absl::time",
    "absl/base/thread_annotations.h": "absl::core_headers",
    "absl/random/": "absl::random_random",
    "absl/synchronization/": "absl::synchronization",
    "absl/": "absl::",
    "CLI/": "CLI11::CLI11",
    "benchmark/": "benchmark::benchmark",
    "cuda": "CUDA::",
    "google/protobuf/": "protobuf::libprotobuf",
    "grpc/": "gRPC::grpc++",
    "grpcpp/": "gRPC::grpc++",
    "httplib.h": "PkgConfig::cpp_httplib",
    "libpq-fe.h": "PkgConfig::libpq",
    "nccl.h": "NCCL::headers",
    "nlohmann/": "nlohmann_json::nlohmann_json",
    "openssl/ssl.h": "OpenSSL::SSL",
    "openssl/": "OpenSSL::",
    "prometheus/": "prometheus-cpp::core",
    "simdjson.h": "simdjson::simdjson",
    "spdlog/": "spdlog::spdlog",
    "sqlite3.h": "PkgConfig::sqlite3",
    "zlib.h": "ZLIB::ZLIB",
    "zstd": "PkgConfig::libzstd",
}
CALLS = "bucketd_library|bucketd_executable|bucketd_test|add_library|add_executable|target_link_libraries"
CALL = re.compile(rf"^[ ]*({CALLS})\s*\(([^()]*)\)", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)
WORDS = {"ALONE", "APART", "SOURCES", "DEPS", "LABELS", "STATIC", "SHARED", "MODULE", "ALIAS", "PUBLIC", "PRIVATE", "INTERFACE"}


class Target:
    def __init__(self, name: str, folder: str):
        self.name, self.folder = name, folder
        self.sources: list[str] = []
        self.deps: list[str] = []


def real_name(name: str) -> str:
    return name.replace("::", "_") if name.startswith("bucketd::") else name


def parts(arguments: str) -> tuple[str, dict[str, list[str]]]:
    """A call's first word, and the others by the keyword that they stand behind."""
    words = re.sub(r"#[^\n]*", "", arguments).replace('"', "").split()
    found: dict[str, list[str]] = {"": []}
    at = ""
    for word in words[1:]:
        if word in WORDS:
            at = word
        found.setdefault(at, [])
        if word not in WORDS:
            found[at].append(word)
    return words[0], found


def targets_of(folder: str, text: str, into: dict[str, Target]) -> None:
    """Adds what one CMakeLists.txt declares. Names and files that CMake puts together from variables are left out."""
    for call, arguments in CALL.findall(re.sub(r"\$<[^>]*>", "", text)):
        name, given = parts(arguments)
        if "$" in name or "ALIAS" in given:
            continue
        name = real_name(name)
        target = into.setdefault(name, Target(name, folder))
        lists = [given[key] for key in ("SOURCES", "APART", "STATIC", "SHARED", "MODULE", "") if key in given]
        if call == "target_link_libraries":
            target.deps += sum(given.values(), [])
        else:
            target.sources += [f"{folder}/{source}" for words in lists for source in words if "$" not in source]
            target.deps += given.get("DEPS", [])
        if call == "bucketd_test":
            target.deps += ["GTest::gmock"]


def all_targets() -> dict[str, Target]:
    targets: dict[str, Target] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("CMakeLists.txt")):
            targets_of(path.parent.relative_to(ROOT).as_posix(), path.read_text(), targets)
    targets["bucketd_proto"].deps += ["protobuf::libprotobuf"]
    return targets


def reached(targets: dict[str, Target], name: str) -> set[str]:
    """The names that a target's DEPS reach, itself among them."""
    seen: set[str] = set()
    pending = [name]
    while pending:
        at = real_name(pending.pop())
        if at not in seen:
            seen.add(at)
            pending += targets[at].deps if at in targets else []
    return seen


def owners(targets: dict[str, Target]) -> dict[str, set[str]]:
    """Which targets each header belongs to: those that compile the source of its name, else the libraries of its folder, else
    (in tests) whoever includes it."""
    by_source: dict[str, set[str]] = {}
    by_folder: dict[str, set[str]] = {}
    for target in targets.values():
        for source in target.sources:
            path = (ROOT / source).resolve()
            by_source.setdefault(path.relative_to(ROOT).with_suffix("").as_posix(), set()).add(target.name)
            if not target.folder.startswith("tests"):
                by_folder.setdefault(path.parent.relative_to(ROOT).as_posix(), set()).add(target.name)
    found = {}
    for room in ROOMS:
        for header in (ROOT / room).rglob("*.h"):
            name = header.relative_to(ROOT)
            found[name.as_posix()] = by_source.get(name.with_suffix("").as_posix()) or by_folder.get(name.parent.as_posix(), set())
    return found


def package_of(include: str) -> str:
    """The longest prefix in PACKAGES says it; "" for what is not a package's."""
    return PACKAGES.get(max((prefix for prefix in PACKAGES if include.startswith(prefix)), key=len, default=""), "")


def missing(include: str, reach: set[str], owner: dict[str, set[str]]) -> str:
    """What DEPS would have to reach for one include; "" where they do."""
    if include.startswith("proto/"):
        want = "bucketd_grpc" if include.endswith(".grpc.pb.h") else "bucketd_proto"
        return "" if want in reach else want
    if include in owner:
        wanted = owner[include]
        return "" if not wanted or wanted & reach else " or ".join(sorted(wanted))
    want = package_of(include)
    return "" if any(name.startswith(want) for name in reach) else want


def includes_of(target: Target, owner: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Each file of a target with each of its includes: its sources, and from them the headers that are the target's own."""
    pending = [source for source in target.sources if source.endswith((".cc", ".cu"))]
    seen: set[str] = set()
    found = []
    while pending:
        path = (ROOT / pending.pop()).resolve().relative_to(ROOT).as_posix()
        if path in seen:
            continue
        seen.add(path)
        for include in INCLUDE.findall((ROOT / path).read_text()):
            found.append((path, include))
            if include in owner and (not owner[include] or target.name in owner[include]):
                pending.append(include)
    return sorted(found)


def violations(targets: dict[str, Target]) -> list[str]:
    owner = owners(targets)
    found = []
    for target in targets.values():
        reach = reached(targets, target.name)
        for path, include in includes_of(target, owner):
            want = missing(include, reach, owner)
            if want:
                found.append(f"{path}: includes {include}, but the DEPS of {target.name} do not reach {want}")
    return found


def test_what_a_target_includes_stands_in_its_deps():
    targets = all_targets()
    assert len(targets) > 60, "the CMakeLists.txt were not found"
    found = violations(targets)
    assert not found, "\n" + "\n".join(found)


def test_the_state_machine_of_agreement_links_no_store():
    reach = reached(all_targets(), "bucketd_server_jobs_machine")
    assert "bucketd_server_plan_request" in reach
    assert not {name for name in reach if "store" in name or "sqlite" in name}


def test_a_missing_dep_is_seen():
    targets = all_targets()
    for name, dep in [("bucketd_render", "bucketd::sim"), ("bucketd_cli", "CLI11::CLI11"), ("bucketctl", "bucketd::client")]:
        kept = targets[name].deps
        targets[name].deps = [other for other in kept if other != dep]
        assert any(name in line for line in violations(targets)), f"{name} without {dep}"
        targets[name].deps = kept
