"""HTTP/2 by hand (RFC 9113), for what no gRPC client would send."""

from __future__ import annotations

import socket
import struct
import threading

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM = ACK = 1
END_HEADERS = 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GET_PLAN = "/bucketd.v1.Planner/GetPlan"
UPLOAD_GRAPH = "/bucketd.v1.Planner/UploadGraph"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(value: str) -> bytes:
    assert len(value) < 127
    return bytes([len(value)]) + value.encode()


def header_block(path: str, **more: str) -> bytes:
    """Of a gRPC call, in HPACK (RFC 7541) without its dynamic table."""
    block = b"\x83\x86" + b"\x04" + _text(path) + b"\x01" + _text("localhost") + b"\x0f\x10" + _text("application/grpc")
    for name, value in {"te": "trailers", **more}.items():
        block += b"\x00" + _text(name.replace("_", "-")) + _text(value)
    return block


def message(data: bytes, compressed: bool = False) -> bytes:
    """As gRPC frames it: a flag, a length."""
    return struct.pack(">BI", compressed, len(data)) + data


class Connection:
    """To a server at HOST:PORT, from `source`: any address of the loopback network is another peer."""

    def __init__(self, address: str, source: str = "127.0.0.1"):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=30, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.last_stream = -1
        self.answers = bytearray()  # what came, the first mebibyte of it
        self._opened = threading.Condition()
        self._window, self._first_window = 65_535, 65_535
        self._windows: dict[int, int] = {}
        self.closed = threading.Event()
        self._sending = threading.Lock()
        self.send(PREFACE + frame(SETTINGS, 0, 0))
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _drain(self) -> None:
        rest = b""
        try:
            while data := self.socket.recv(1 << 16):
                if len(self.answers) < 1 << 20:
                    self.answers += data
                rest = self._take(rest + data)
        except OSError:
            pass
        self.closed.set()
        with self._opened:
            self._opened.notify_all()

    def _take(self, data: bytes) -> bytes:
        """Follows the server's windows; returns the frame that is not whole yet."""
        while len(data) >= 9 and len(data) >= (end := 9 + int.from_bytes(data[:3], "big")):
            kind, flags, stream = struct.unpack(">BBI", data[3:9])
            payload, data = data[9:end], data[end:]
            with self._opened:
                if kind == WINDOW_UPDATE:
                    more = int.from_bytes(payload, "big")
                    if stream:
                        self._windows[stream] = self._windows.get(stream, self._first_window) + more
                    else:
                        self._window += more
                elif kind == SETTINGS and not flags & ACK:
                    self.send(frame(SETTINGS, ACK, 0))  # before that the server goes by the windows of the protocol's start
                    for at in range(0, len(payload), 6):
                        name, value = struct.unpack(">HI", payload[at:at + 6])
                        if name == 4:
                            self._windows = {s: w + value - self._first_window for s, w in self._windows.items()}
                            self._first_window = value
                self._opened.notify_all()
        return data

    def next_stream(self) -> int:
        self.last_stream += 2
        return self.last_stream

    def send(self, data: bytes) -> None:
        """ConnectionError if the server has closed it."""
        if self.closed.is_set():
            raise ConnectionResetError("the server closed the connection")
        with self._sending:
            self.socket.sendall(data)

    def _allowed(self, stream: int, wanted: int, patience: float) -> int:
        """So many bytes may be sent now; ConnectionError where the windows stay shut for `patience` seconds."""
        with self._opened:
            room = lambda: min(self._window, self._windows.setdefault(stream, self._first_window), wanted)
            if not self._opened.wait_for(lambda: room() > 0 or self.closed.is_set(), patience) or self.closed.is_set():
                raise ConnectionResetError("the server takes no more")
            size = room()
            self._window -= size
            self._windows[stream] -= size
            return size

    def give_window(self, stream: int) -> None:
        """What the server will not: it counts the bytes of a stream that it does not know for its connection alone."""
        with self._opened:
            self._windows[stream] = 1 << 30

    def send_data(self, stream: int, data: bytes, step: int = 16_384, patience: float = 1.0) -> None:
        """As fast as the server's windows allow; ConnectionError where they stay shut for `patience` seconds."""
        while data:
            size = self._allowed(stream, min(step, len(data)), patience)
            self.send(frame(DATA, 0, stream, data[:size]))
            data = data[size:]

    def send_together(self, messages: dict[int, bytes], patience: float = 30.0) -> None:
        """A message a stream, and its end: all but the last byte of each, and then those in one write."""
        for stream, message in messages.items():
            self.send_data(stream, message[:-1], patience=patience)
        for stream in messages:
            self._allowed(stream, 1, patience)
        self.send(b"".join(frame(DATA, END_STREAM, stream, message[-1:]) for stream, message in messages.items()))

    def close(self) -> None:
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()
        self._reader.join(5)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_) -> None:
        self.close()
