"""A TCP link that can be made to fail: connections to `address` are passed on to a target, as long as it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
import threading

_CHUNK = 1 << 16


class Way(enum.Enum):
    """One direction of a link. What is held comes in order once the link passes again."""

    PASS = "passes"
    HOLD = "is held"  # as of a cable that was pulled: nothing comes, nobody is told


class FaultyLink:
    """`target`: ("host", port) or the path of a unix socket. Thread-safe; ends with the block."""

    def __init__(self, target: tuple[str, int] | str):
        self._target = target
        self._forth = self._back = Way.PASS
        self._delay = 0.0
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> FaultyLink:
        self._thread.start()
        self._changed = self._ask(self._make_event())
        self.port = 0
        self._ask(self._listen())
        self.address = f"127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_) -> None:
        self._ask(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    # -- what goes wrong

    def heal(self) -> None:
        self._set(Way.PASS, Way.PASS, 0.0, refuses=False)

    def hold(self) -> None:
        """Nothing comes through, and no connection ends: who waits finds out by waiting."""
        self._set(Way.HOLD, Way.HOLD, 0.0, refuses=False)

    def hold_answers(self) -> None:
        """What is asked arrives; what is answered does not."""
        self._set(Way.PASS, Way.HOLD, 0.0, refuses=False)

    def delay(self, seconds: float) -> None:
        """Each way takes so much longer."""
        self._set(Way.PASS, Way.PASS, seconds, refuses=False)

    def reset(self) -> None:
        """All connections end at once, with RST, and new ones are refused, as where a host is up and nobody listens."""
        self._set(Way.PASS, Way.PASS, 0.0, refuses=True)

    def _set(self, forth: Way, back: Way, delay: float, refuses: bool) -> None:
        async def change():
            self._forth, self._back, self._delay = forth, back, delay
            if refuses:
                self._server.close()
                for pair in list(self._pairs):
                    self._abort(pair)
            elif not self._server.is_serving():
                await self._listen()
            self._changed.set()
            self._changed.clear()

        self._ask(change())

    # -- of the loop's thread

    @staticmethod
    async def _make_event() -> asyncio.Event:
        return asyncio.Event()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def _ask(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @staticmethod
    def _abort(pair) -> None:
        for writer in pair:
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)  # so that close() sends RST
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    async def _connect(self):
        if isinstance(self._target, str):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection(*self._target)

    async def _accept(self, near_reader, near) -> None:
        try:
            far_reader, far = await self._connect()
        except OSError:
            self._abort((near,))
            return
        pair = (near, far)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._pass(near_reader, far, lambda: self._forth), self._pass(far_reader, near, lambda: self._back))
        except (OSError, asyncio.CancelledError):  # cancelled at the link's end, when nothing is left to say
            pass
        finally:
            self._pairs.discard(pair)
            self._abort(pair)

    async def _pass(self, reader, writer, way) -> None:
        while data := await reader.read(_CHUNK):
            if self._delay:
                await asyncio.sleep(self._delay)
            while way() is Way.HOLD:
                await self._changed.wait()
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError, NotImplementedError):
            writer.write_eof()

    async def _close(self) -> None:
        self._server.close()
        self._forth = self._back = Way.PASS
        self._changed.set()
        for pair in list(self._pairs):
            self._abort(pair)
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.sleep(0)
