"""A network that breaks: a relay in front of a planner that cuts its first connections after so many bytes."""

from __future__ import annotations

import socket
import threading

_QUIET = 0.3


class Relay:
    """Listens on the unix socket `path` and passes bytes on to the planner at `to`. Connection k ends, both ways, once
    more than cuts[k] bytes have come from the client and the planner, which may lag behind, has had nothing to say to them
    for a while; further ones live on. Use as a context manager."""

    def __init__(self, path: str, to: str, *cuts: int):
        self.address, self._to, self._cuts = f"unix:{path}", to.removeprefix("unix:"), list(cuts)
        self.cut = 0  # connections that were
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._open: list[socket.socket] = []
        self._said = threading.Condition()
        self._passed = 0  # pieces, both ways
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Relay:
        self._threads[0].start()
        return self

    def __exit__(self, *_):
        for each in (self._listener, *self._open):
            _end(each)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                planner = socket.socket(socket.AF_UNIX)
                self._open += [client, planner]
                planner.connect(self._to)
            except OSError:
                return
            limit = self._cuts.pop(0) if self._cuts else None
            for source, target, most in ((client, planner, limit), (planner, client, None)):
                thread = threading.Thread(target=self._pass, args=(source, target, most), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _await_quiet(self) -> None:
        with self._said:
            before = -1
            while before != self._passed:
                before = self._passed
                self._said.wait_for(lambda: before != self._passed, _QUIET)

    def _pass(self, source, target, most) -> None:
        try:
            while data := source.recv(4096):
                if most is not None and (most := most - len(data)) < 0:
                    self._await_quiet()
                    self.cut += 1
                    break
                with self._said:
                    self._passed += 1
                    self._said.notify_all()
                target.sendall(data)
        except OSError:
            pass
        _end(source)
        _end(target)


def _end(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    one.close()
