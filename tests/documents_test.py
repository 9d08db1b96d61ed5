"""Holds what the documents say to the code: links, files, commands, flags and the Python client's arguments exist.

It reads every Markdown file of the repository but the changelog, which speaks of the past, and what tests/data carries from elsewhere.
"""
import ast
import functools
import os
import pathlib
import re
import shlex
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(os.environ.get("BUCKETD_BIN", ROOT / "build" / "bin"))
NOT_OURS = ("tests/data/referee/", "tests/data/SCHEMA.md", "CHANGELOG.md")
README_WORDS = 1000

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
PATH = re.compile(r"^[\w.-]+(?:/[\w.-]+)+/?$|^[\w-]+\.(?:md|h|cc|py|sh|proto|yml|json|toml|txt)$")
# A name as code has it: a function, a type, a field, a test; what stands before it (namespaces, objects) may be anybody's.
SYMBOL = re.compile(r"(?:[A-Za-z_]\w*(?:::|\.))*(?=\w*(?:[a-z][A-Z]|[A-Z][a-z]|_)|\w+\()([A-Za-z_]\w*)(?:\(.*\))?")
# Those that other people's code has, and those that stand for any.
FOREIGN_SYMBOLS = {"ep_overlap", "tensors_saved_with_vc_check", "NCCL_GRAPH_MIXING_SUPPORT", "CTAPolicy", "commDestroySync", "AddNameCommand"}
# Programs with sub-commands, and those without.
PROGRAMS = {"bucketctl": True, "bucket-agent": True, "bucketd": False, "bucketd-opt": False}
# Flags of other people's programs that a document names.
FOREIGN = {"--nnodes", "--test-dir", "--output-on-failure", "--benchmark_filter", "--target", "--preset", "--config", "--repo", "--pid"}


def documents() -> list[pathlib.Path]:
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [ROOT / name for name in names if not name.startswith(NOT_OURS)]


DOCUMENTS = documents()
EACH = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.relative_to(ROOT).as_posix())


@functools.cache
def tracked() -> frozenset[str]:
    """Every tracked file and folder, by its path and by each shorter ending of it."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    found = set()
    for name in names:
        parts = name.split("/")
        for end in range(1, len(parts) + 1):
            found.update("/".join(parts[begin:end]) for begin in range(end))
    return frozenset(found)


@functools.cache
def help_of(*command: str) -> str:
    run = subprocess.run([*command, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, f"{shlex.join(command)} --help: {run.stderr[-500:]}"
    return run.stdout


@functools.cache
def subcommands(program: str) -> tuple[tuple[str, ...], ...]:
    """("plan",), ("costs",), ("costs", "list"), ...: every path of words that has help of its own."""
    found: list[tuple[str, ...]] = []
    open_paths: list[tuple[str, ...]] = [()]
    while open_paths:
        path = open_paths.pop()
        text = help_of(str(BIN / program), *path)
        for word in re.findall(r"^  ([a-z][a-z-]+)(?:  |,|$)", text, re.MULTILINE):
            run = subprocess.run([str(BIN / program), *path, word, "--help"], capture_output=True, text=True, timeout=60)
            if run.returncode == 0 and run.stdout != text and (*path, word) not in found and len(path) < 2:
                found.append((*path, word))
                open_paths.append((*path, word))
    return tuple(found)


def scripts() -> list[str]:
    names = subprocess.run(["git", "ls-files", "*.sh", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [name for name in names if name.startswith(("deploy/", "tests/bench/", "tests/faults/", "tests/fuzz/", "gpu_agent/", "client/python/"))
            or name.count("/") == 1]


@functools.cache
def known_flags() -> frozenset[str]:
    """Of our programs by their help, of scripts by their text."""
    found = set(FOREIGN)
    for program, has_commands in PROGRAMS.items():
        found.update(FLAG.findall(help_of(str(BIN / program))))
        for path in subcommands(program) if has_commands else ():
            found.update(FLAG.findall(help_of(str(BIN / program), *path)))
    for name in scripts():
        if name == "tests/documents_test.py":
            continue
        found.update(FLAG.findall((ROOT / name).read_text()))
    for source in ROOT.glob("tests/bench/*.cc"):
        found.update(FLAG.findall(source.read_text()))
    return frozenset(found)


def commands_in(text: str) -> list[str]:
    """Lines of shell blocks that begin with one of our programs, without their comments."""
    found = []
    for language, block in FENCE.findall(text):
        if language not in ("", "sh", "bash", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            for command in line.split("#")[0].split(";"):
                command = command.strip().removeprefix("$ ").strip()
                if command.split(" ")[0].split("/")[-1] in PROGRAMS:
                    found.append(command)
    return found


@EACH
def test_links_lead_somewhere(document):
    for target in LINK.findall(document.read_text()):
        if not re.match(r"\w+:", target):
            assert (document.parent / target).exists(), f"{document.relative_to(ROOT)}: ({target}) leads nowhere"


@EACH
def test_links_lead_to_headings(document):
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", document.read_text()):
        there = document.parent / target if target else document
        headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
        names = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in names, f"{document.relative_to(ROOT)}: {there.name} has no #{anchor}"


@EACH
def test_named_files_exist(document):
    text = FENCE.sub("", document.read_text())
    folder = document.parent.relative_to(ROOT).as_posix()
    for code in CODE.findall(text):
        if not PATH.match(code) or code.startswith(("build/", "/")) or "my_" in code:
            continue
        room = code.split("/")[0]
        if "/" in code and room not in tracked() and f"{folder}/{room}" not in tracked():
            continue  # not a path of ours: a MIME type, a fraction, a key
        assert code.rstrip("/") in tracked(), f"{document.relative_to(ROOT)}: no {code}"


@functools.cache
def words_of_the_source() -> frozenset[str]:
    """Flags as their keys, too; without what only tells of code: documents, mutations, results."""
    apart = (":!*.md", ":!tests/data", ":!tests/mutations.json", ":!tests/documents_test.py")
    names = subprocess.run(["git", "grep", "-Il", "", "--", ".", *apart], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    texts = [(ROOT / name).read_text() for name in names]
    return frozenset(word for text in texts for form in (text, text.replace("-", "_")) for word in re.findall(r"[A-Za-z_]\w*", form))


@EACH
def test_named_symbols_exist(document):
    if document.name == "MUTATIONS.md":
        return  # names what breaks the code, too
    for code in CODE.findall(FENCE.sub("", document.read_text())):
        found = SYMBOL.fullmatch(code)
        if found is None or found[1] in FOREIGN_SYMBOLS:
            continue
        parts = {found[1], found[1].removesuffix("_us")}  # JSON's unit
        assert parts & words_of_the_source(), f"{document.relative_to(ROOT)}: nothing is called `{code}`"


@EACH
def test_commands_are_known(document):
    for command in commands_in(document.read_text()):
        words = command.split()
        program = words[0].split("/")[-1]
        if program not in ("bucketctl", "bucket-agent") or len(words) < 2 or words[1].startswith("-"):
            continue
        assert (words[1],) in subcommands(program), f"{document.relative_to(ROOT)}: `{command}`: no such command"
        path = tuple(words[1:3]) if tuple(words[1:3]) in subcommands(program) else (words[1],)
        text = help_of(str(BIN / program), *path) + help_of(str(BIN / program))
        for flag in FLAG.findall(command):
            assert flag in text, f"{document.relative_to(ROOT)}: `{command}`: {flag} is not in its --help"


@EACH
def test_flags_exist(document):
    text = document.read_text()
    named = [flag for code in CODE.findall(FENCE.sub("", text)) for flag in FLAG.findall(code)]
    named += [flag for command in commands_in(text) for flag in FLAG.findall(command)]
    unknown = sorted({flag for flag in named if flag not in known_flags()})
    assert not unknown, f"{document.relative_to(ROOT)} names flags that nothing takes: {', '.join(unknown)}"


@pytest.mark.parametrize("script", ["deploy/setup.sh", "deploy/quickstart.sh", "deploy/measured.sh", "deploy/wheel.sh", "tests/run.sh"])
def test_a_script_that_is_asked_for_help_does_nothing_else(script):
    said = help_of(str(ROOT / script))
    assert said.startswith(f"usage: {script}") and "== " not in said, said


@EACH
def test_python_blocks_parse(document):
    for language, block in FENCE.findall(document.read_text()):
        if language == "python":
            ast.parse(block)


def test_python_names_exist():
    bucketd = pytest.importorskip("bucketd")
    for document in DOCUMENTS:
        for name in re.findall(r"\bbucketd\.([a-z_]+)\b(?=[(`,. ])", document.read_text()):
            is_file = {f"bucketd.{name}", f"bucketd/{name}.py", f"bucketd/{name}/__main__.py"} & tracked() or name in ("service", "toml", "v1", "sock", "socket")
            assert is_file or hasattr(bucketd, name), f"{document.relative_to(ROOT)}: no bucketd.{name}"


def test_the_audit_logs_words_are_what_its_help_lists():
    (table,) = re.findall(r"^\| `what` .*?\n\n", (ROOT / "server" / "store" / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    words = set(re.findall(r"`([a-z]+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)))) - {"what"}
    listed = re.search(r"--what TEXT +(.*)", help_of(str(BIN / "bucketctl"), "audit"))[1]
    assert words == set(re.findall(r"[a-z]+", listed)) - {"or"}, listed


def test_the_readmes_table_is_what_the_program_prints():
    """Without some of its columns."""
    (table,) = (block for _, block in FENCE.findall((ROOT / "README.md").read_text()) if block.startswith("llama3_8b_fsdp8.bw:"))
    graph = ROOT / "tests" / "data" / "graphs" / "llama3_8b_fsdp8.bw.json.gz"
    run = subprocess.run([BIN / "bucketctl", "compare", graph, "--numerics", "free"], check=True, capture_output=True, text=True)
    printed = {cells[0]: cells for line in run.stdout.splitlines() if (cells := re.split(r"  +", line.strip("* ")))}
    for line in table.splitlines():
        shown = re.split(r"  +", line.strip("* "))
        found = iter(printed[shown[0]])
        assert all(cell in found for cell in shown), f"README.md: {line}\n{' '.join(printed[shown[0]])}"


def test_the_readmes_picture_is_what_the_program_draws(tmp_path):
    graph = ROOT / "tests" / "data" / "graphs" / "llama3_debug_fsdp8.bw.json.gz"
    plan, drawn = tmp_path / "plan.json", tmp_path / "timeline.svg"
    for command in (["plan", graph, "--plan-out", plan], ["trace", graph, plan, "--out", drawn]):
        subprocess.run([BIN / "bucketctl", *command], check=True, capture_output=True)
    kept = ROOT / "deploy" / "pictures" / "llama3_debug_fsdp8_bw.svg"
    assert kept.read_text() == drawn.read_text(), f"bucketctl plan and trace {graph.name} draw another {kept.relative_to(ROOT)}"


def test_the_readme_is_short():
    words = len((ROOT / "README.md").read_text().split())
    assert words <= README_WORDS, f"README.md has {words} words"


def test_what_is_wrong_is_seen():
    assert commands_in("```sh\nbucketctl plan x --no-such  # why\n```") == ["bucketctl plan x --no-such"]
    assert "--no-such" not in known_flags()
    assert ("plan",) in subcommands("bucketctl") and ("frobnicate",) not in subcommands("bucketctl")
    assert SYMBOL.fullmatch("HasNoSuch")[1] not in words_of_the_source() and SYMBOL.fullmatch("Server::Check()")[1] in words_of_the_source()
    assert "passes/README.md" in tracked() and "passes/nowhere.md" not in tracked()
