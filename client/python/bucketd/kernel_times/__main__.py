"""Kernel times of a trace, into graphs that `bucketctl plan` then plans with them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import files
from ..graph import GraphError
from . import TraceError, kernel_times, launches_of

_EPILOG = """Profile a step that was planned with mode="none": its kernels run in the graph's order. On CPUs Inductor
shows them to the profiler only if they were compiled with torch._inductor.config.cpp.enable_kernel_profile = True.
Graphs that were planned for aot_eager are measured operator by operator. Calls without a measured time get the cost
model of captured-graph files, scaled as the measured ones differ from it (compute_scale). `bucketctl costs import-trace
--kernels FILE` puts what was measured into a cost profile, which brings it to the graphs of every job that plans with
it; what links take is measured there, too."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m bucketd.kernel_times", description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", help="what export_chrome_trace wrote, JSON or gzip")
    parser.add_argument("--graph", action="append", required=True, metavar="FILE",
                        help="what bucketd.plan_file.save_planned wrote; one for each compiled graph")
    parser.add_argument("--out", action="append", required=True, metavar="FILE", help="one for each --graph: the same with measured times")
    args = parser.parse_args(arguments)
    if len(args.graph) != len(args.out):
        parser.error(f"{len(args.graph)} times --graph, {len(args.out)} times --out; expected as many")
    try:
        graphs = [files.load_graph(path) for path in args.graph]
        found = kernel_times(graphs, args.trace)
        for graph, times, runs, path in zip(graphs, found.microseconds, found.runs, args.out, strict=True):
            bearing = {node for launch in launches_of(graph) for node in launch.nodes}
            if times:
                files.save_graph(graph, path, times)
                scale = files.compute_scale(graph, times)
                print(f"{path}: {runs} runs, {len(times)} of {len(bearing)} costs measured, compute_scale {scale:.3g}")
            else:
                print(f"{path}: not written, no kernel of this graph is in the trace")
    except (OSError, GraphError, TraceError) as error:
        print(error, file=sys.stderr)
        return 1
    for why, count in sorted(found.dropped.items()):
        print(f"{count:6}  not used: {why}")
    return 0 if all(found.microseconds) else 1


if __name__ == "__main__":
    sys.exit(main())
