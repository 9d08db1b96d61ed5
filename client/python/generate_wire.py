"""Generates bucketd/_wire/proto/*_pb2*.py from the repository's proto/. Needs grpcio-tools.

The files import each other as "proto/graph.proto", so plain protoc output would want a top-level package `proto`; the
imports are rewritten to live inside bucketd. error.proto is left out: googleapis-common-protos has those messages.

protoc and grpc write into what they make that nothing older than themselves may run it, and refuse at import otherwise. What they make
is the same since protobuf 4.25 and grpcio 1.62, but for that: a trainer's environment has the protobuf that its other packages
want, so the refusal is left out, and pyproject.toml says what is needed.
"""

import re
import sys
import tempfile
from pathlib import Path

FILES = ("agent", "graph", "plan", "costs", "planner")
SERVICES = ("agent", "planner")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
OUT = HERE / "bucketd" / "_wire" / "proto"
_IMPORT = re.compile(r"^from proto import (\w+_pb2)", re.MULTILINE)
_REFUSALS = (
    re.compile(r"^from google\.protobuf import runtime_version as _runtime_version\n", re.MULTILINE),
    re.compile(r"^_runtime_version\.ValidateProtobufRuntimeVersion\(.*?^\)\n", re.MULTILINE | re.DOTALL),
    re.compile(r"^GRPC_GENERATED_VERSION = .*?^    \)\n", re.MULTILINE | re.DOTALL),
    re.compile(r",\s*_registered_method=True"),  # a word of grpcio 1.63 on, as is
    re.compile(r"^ +server\.add_registered_method_handlers\(.*\n", re.MULTILINE),
)


def generate(into: Path) -> None:
    try:
        from grpc_tools import protoc
    except ImportError:
        sys.exit("generate_wire.py: grpcio-tools is missing; install it with: pip install grpcio-tools")
    sources = [f"proto/{name}.proto" for name in FILES]
    arguments = ["protoc", f"-I{ROOT}", f"--python_out={into}", f"--grpc_python_out={into}"]
    if protoc.main(arguments + [str(ROOT / source) for source in sources]) != 0:
        sys.exit("generate_wire.py: protoc failed")


def of_any_runtime(text: str) -> str:
    for refusal in _REFUSALS:
        text = refusal.sub("", text)
    for left in ("runtime_version", "GRPC_GENERATED_VERSION", "_registered_method"):
        if left in text:
            sys.exit(f"generate_wire.py: this grpcio-tools writes {left} in another form than is known here")
    return text


def main() -> None:
    newest = max((ROOT / "proto" / f"{name}.proto").stat().st_mtime for name in FILES)
    newest = max(newest, Path(__file__).stat().st_mtime)
    present = [OUT / f"{name}_pb2.py" for name in FILES] + [OUT / f"{name}_pb2_grpc.py" for name in SERVICES]
    if all(path.exists() and path.stat().st_mtime >= newest for path in present):
        return
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        OUT.mkdir(parents=True, exist_ok=True)
        for path in sorted(Path(scratch, "proto").glob("*.py")):
            if path.name.endswith("_pb2_grpc.py") and path.name.removesuffix("_pb2_grpc.py") not in SERVICES:
                continue  # no services there
            text = of_any_runtime(_IMPORT.sub(r"from bucketd._wire.proto import \1", path.read_text()))
            # Several processes may generate at once: each file appears whole.
            part = OUT / f".{path.name}.{Path(scratch).name}"
            part.write_text(text)
            part.replace(OUT / path.name)
    print(f"generate_wire.py: wrote {OUT.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    main()
