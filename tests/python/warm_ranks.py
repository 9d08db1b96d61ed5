"""A process that has imported PyTorch, what a first compilation imports too, and gives birth to ranks: three quarters of what
a small rank costs are imports. ranks.py starts it, and speaks to it over the socket whose descriptor is argv[1].

A request is JSON: the script, its arguments, the environment, folders for sys.path; with it come two descriptors: for
what the rank says, and for "pid\n" when it runs and "status\n" when it has ended.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys

# By name, since one that another version of PyTorch lacks is no error: it is imported later, by the ranks.
WARM = ("torch", "numpy", "torch.distributed.device_mesh", "torch.distributed.tensor", "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel", "torch.distributed._functional_collectives", "torch._dynamo",
        "torch._dynamo.backends.common", "torch._inductor.compile_fx", "torch._functorch.aot_autograd",
        "torch._functorch.partitioners", "torch.profiler", "torch.testing", "torch.fx.experimental.symbolic_shapes",
        "torch.fx.experimental.proxy_tensor", "torch._dynamo.convert_frame", "torch.nn.utils.parametrize")


def become(request: dict) -> int:
    """The exit status of the script, run as if this process had begun with it."""
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = [request["script"], *request["arguments"]]
    sys.path[:0] = [os.path.dirname(request["script"]), *request["path"]]
    try:
        runpy.run_path(request["script"], run_name="__main__")
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1


def rank(request: dict, output: int) -> None:
    """Never returns."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = become(request)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def watch_over(request: dict, output: int, status: int) -> None:
    """In a process of its own, which outlives the rank by its last word. Never returns."""
    pid = os.fork()
    if not pid:
        os.close(status)
        rank(request, output)
    os.close(output)
    os.write(status, f"{pid}\n".encode())
    os.write(status, f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())
    os._exit(0)


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    for name in WARM:
        try:
            importlib.import_module(name)
        except ImportError:
            pass
    gc.freeze()  # no page is copied for the collector's sake
    gc.set_threshold(50_000, 50, 50)  # what is traced lives on: to look for cycles in it as often as by default is a tenth of a rank's time
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks after those who watch
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 1 << 20, 2)
        if not data:
            return
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.close()
            watch_over(json.loads(data), *fds)
        for fd in fds:
            os.close(fd)


if __name__ == "__main__":
    main()
