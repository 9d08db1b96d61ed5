"""A trainer's ring (gpu_agent/telemetry/ring_layout.h) written by hand, so that an agent hears whatever a test wants it to."""

import fcntl
import os
import socket
import struct

_HEADER, _RECORD, _VERSION = 4096, 56, 3
_ADD_SEALS, _NEITHER_SHRINKS_NOR_GROWS = 1033, 0x2 | 0x4
KINDS = {"all_gather": 1, "reduce_scatter": 2, "all_reduce": 3}
BF16 = 8


class ForgedRing:
    """Hands itself to the agent at `path`. Of one plan, number 7 unless `plan` says another, and one group of two ranks of this node."""

    def __init__(self, path: str, job: str = "", records: int = 256, part: int = 1, seals: int = _NEITHER_SHRINKS_NOR_GROWS, plan: int = 7):
        self.records, self.head, self.plan = records, 0, plan
        self.memory = os.memfd_create("forged", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.memory, _HEADER + records * _RECORD)
        fcntl.fcntl(self.memory, _ADD_SEALS, seals)
        self.put(0, struct.pack("<8sII48s", b"bktring", _VERSION, records, job.encode()))
        self.put(80, struct.pack("<II", 1, 1))
        self.put(192, struct.pack("<40sQII", b"", 1, 2, 2))
        self.put(192 + 16 * 64, struct.pack("<QqqqB", plan, 2 * 10**8, 1 << 30, 1 << 20, part))
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(path)
        socket.send_fds(self.connection, [bytes([_VERSION])], [self.memory])

    def put(self, at: int, data: bytes) -> None:
        assert os.pwrite(self.memory, data, at) == len(data)

    def ran(self, step: int, bucket: int = 0, kind: str = "all_gather", size: int = 1 << 20, wire_ns: int = 100_000,
            predicted_ns: int = 80_000, exposed_ns: int = 20_000, peak: int = 1 << 29, plan: int | None = None) -> None:
        """One run of a bucket, or of a collective that no bucket is of."""
        record = struct.pack("<QqqIIIIIIHHBBBB", self.plan if plan is None else plan, size, peak, 3000, wire_ns, 2000, exposed_ns, predicted_ns, step, bucket, 1,
                             KINDS.get(kind, 0), BF16, 1, 0)
        self.put(_HEADER + self.head % self.records * _RECORD, record)
        self.count(self.head + 1)

    def count(self, head: int) -> None:
        self.head = head
        self.put(64, struct.pack("<Q", head))

    def dropped(self, count: int) -> None:
        self.put(72, struct.pack("<Q", count))

    def arena(self, size: int) -> None:
        self.put(192 + 16 * 64 + 24, struct.pack("<q", size))

    def close(self) -> None:
        self.connection.close()
        os.close(self.memory)
