"""Generates bucketd/_wire/proto/*_pb2*.py from the repository's proto/. Needs grpcio-tools.

The files import each other as "proto/graph.proto", so plain protoc output would want a top-level package `proto`; the
imports are rewritten to live inside bucketd. error.proto is left out: googleapis-common-protos has those messages.
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


def generate(into: Path) -> None:
    try:
        from grpc_tools import protoc
    except ImportError:
        sys.exit("generate_wire.py: grpcio-tools is missing; install it with: pip install grpcio-tools")
    sources = [f"proto/{name}.proto" for name in FILES]
    arguments = ["protoc", f"-I{ROOT}", f"--python_out={into}", f"--grpc_python_out={into}"]
    if protoc.main(arguments + [str(ROOT / source) for source in sources]) != 0:
        sys.exit("generate_wire.py: protoc failed")


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
            text = _IMPORT.sub(r"from bucketd._wire.proto import \1", path.read_text())
            # Several processes may generate at once: each file appears whole.
            part = OUT / f".{path.name}.{Path(scratch).name}"
            part.write_text(text)
            part.replace(OUT / path.name)
    print(f"generate_wire.py: wrote {OUT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
