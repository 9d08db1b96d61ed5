"""Messages of every kind that a schema allows, and of some that it does not; calls of every method with them."""

from __future__ import annotations

import functools
import pathlib
import random
import tempfile

import grpc
from google.protobuf import descriptor, descriptor_pb2, descriptor_pool, message_factory
from harness import Key, Server, channel_to, expect, reason_of

from bucketd._wire.proto import planner_pb2

ROOT = pathlib.Path(__file__).resolve().parents[2]
_DEPTH = 4
_NUMBERS = [0, 1, 2, 3, 7, 127, 128, 255, 4096, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, -1, -2, -(1 << 31),
            -(1 << 63)]
_FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")]
_TEXTS = ["", "a", "dp", "cuda", "cpu", "overlap", "transformer_block", "h100_nvlink", "latest", "layers.[0-9", "x" * 128, "x" * 129, "x" * 5000,
          "\x00", "\n", "%s%n", "../../etc/passwd", "\u2028\U0001f600", "-1", "1e309", "0/fw"]
_RANGES = {
    descriptor.FieldDescriptor.CPPTYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    descriptor.FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 32) - 1),
    descriptor.FieldDescriptor.CPPTYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    descriptor.FieldDescriptor.CPPTYPE_UINT64: (0, (1 << 64) - 1),
}
# From gRPC itself, without details (proto/REASONS.md): a method that is none or a message that does not parse, one that is
# larger than the transport allows, an end by the caller's own clock, a stream that was cut.
_WITHOUT_REASON = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED,
                   grpc.StatusCode.CANCELLED}


def _number(rng: random.Random, cpp_type: int) -> int:
    low, high = _RANGES[cpp_type]
    fitting = [n for n in _NUMBERS if low <= n <= high]
    return rng.choice(fitting) if rng.random() < 0.8 else rng.randint(low, high)


def _scalar(rng: random.Random, field):
    kinds = descriptor.FieldDescriptor
    if field.cpp_type in _RANGES:
        return _number(rng, field.cpp_type)
    if field.cpp_type == kinds.CPPTYPE_ENUM:
        known = [value.number for value in field.enum_type.values]
        return rng.choice(known + [99, -1])
    if field.cpp_type == kinds.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.cpp_type in (kinds.CPPTYPE_DOUBLE, kinds.CPPTYPE_FLOAT):
        return rng.choice(_FLOATS)
    if field.type == kinds.TYPE_BYTES:
        return rng.randbytes(rng.choice([0, 1, 31, 32, 32, 32, 33, 1000, 70_000]))
    return rng.choice(_TEXTS)


def _repeated(field) -> bool:
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def fill(message, rng: random.Random, depth: int = 0) -> None:
    """Random fields of `message`, in place."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.35 + 0.1 * depth:
            continue
        is_message = field.cpp_type == field.CPPTYPE_MESSAGE
        if is_message and depth >= _DEPTH:
            continue
        if is_message and field.message_type.GetOptions().map_entry:
            continue
        if _repeated(field):
            count = rng.choice([0, 1, 1, 2, 3, 5, 300 if depth < 2 and not is_message else 4])
            values = getattr(message, field.name)
            for _ in range(count):
                if is_message:
                    fill(values.add(), rng, depth + 1)
                else:
                    values.append(_scalar(rng, field))
        elif is_message:
            getattr(message, field.name).SetInParent()
            fill(getattr(message, field.name), rng, depth + 1)
        else:
            setattr(message, field.name, _scalar(rng, field))


def mutate(data: bytes, rng: random.Random) -> bytes:
    """`data` with a few bytes changed, taken away, doubled or put in."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(len(out) + 1)
        what = rng.randrange(4)
        if what == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            del out[at:at + rng.choice([1, 3, 100])]
        elif what == 2:
            out[at:at] = rng.randbytes(rng.choice([1, 2, 9]))
        else:
            out[at:at] = out[at:at + rng.choice([1, 10, 200])]
    return bytes(out)


@functools.cache
def methods() -> tuple:
    """Of every service in proto/."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "all")
        sources = [f"proto/{path.name}" for path in sorted((ROOT / "proto").glob("*.proto"))]
        built_in = pathlib.Path(protoc.__file__).parent / "_proto"
        arguments = ["protoc", f"-I{ROOT}", f"-I{built_in}", "--include_imports", f"--descriptor_set_out={out}", *sources]
        expect(protoc.main(arguments) == 0, "protoc refused proto/")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    services = [pool.FindServiceByName(f"{file.package}.{service.name}") for file in files for service in file.service]
    return tuple(method for service in services for method in service.methods)


def _new(message_type):
    return message_factory.GetMessageClass(message_type)()


def _valid(method, key: Key) -> list[bytes]:
    """Messages that the server takes, to be damaged."""
    if method.name == "GetPlan":
        job = planner_pb2.Job(id="job", generation=1, scope="0/fw", rank=[0], size=1)
        return [m.SerializeToString() for m in (key.inline(), key.request(), key.request(job=job))]
    if method.name == "UploadGraph":
        return [m.SerializeToString() for m in key.model.parts("", 1 << 12)]
    if method.name == "QueryUpload":
        return [planner_pb2.QueryUploadRequest(graph_digest=key.model.digest, content_sha256=key.model.content).SerializeToString()]
    message = _new(method.input_type)
    fill(message, random.Random(0))
    return [message.SerializeToString()]


def _random_message(method, rng: random.Random, key: Key) -> bytes:
    what = rng.random()
    if what < 0.45:
        message = _new(method.input_type)
        fill(message, rng)
        return message.SerializeToString()
    if what < 0.9:
        return mutate(rng.choice(_valid(method, key)), rng)
    return rng.randbytes(rng.choice([0, 1, 10, 1000]))


def _random_stream(method, rng: random.Random, key: Key) -> list[bytes]:
    """Mostly a valid stream with something wrong in it: pure noise never gets past the header."""
    stream = _valid(method, key)
    for _ in range(rng.choice([0, 1, 1, 2])):
        at = rng.randrange(len(stream) + 1)
        what = rng.randrange(4)
        if what == 0 and stream[at:]:
            stream[at] = mutate(stream[at], rng)
        elif what == 1:
            del stream[at:at + 1]
        elif what == 2:
            stream.insert(at, _random_message(method, rng, key))
        else:
            stream = stream[:at]
    return stream


def _call(channel, method, rng: random.Random, key: Key):
    path = f"/{method.containing_service.full_name}/{method.name}"
    timeout = rng.choice([0.3, 1.0, 3.0])
    if method.client_streaming:
        kind = channel.stream_stream if method.server_streaming else channel.stream_unary
        return _start(kind(path), iter(_random_stream(method, rng, key)), timeout, method)
    kind = channel.unary_stream if method.server_streaming else channel.unary_unary
    return _start(kind(path), _random_message(method, rng, key), timeout, method)


def _start(kind, argument, timeout: float, method):
    return kind(argument, timeout=timeout) if method.server_streaming else kind.future(argument, timeout=timeout)


def _end(call, method) -> str:
    """"" or the reason of its error."""
    try:
        if method.server_streaming:
            for _ in zip(range(1000), call):
                pass
            call.cancel()
        else:
            call.result()
        return ""
    except grpc.RpcError as error:
        failure = reason_of(error)
        code = error.code()
        from_grpc = failure.reason in ("PROTOCOL", "UNREACHABLE", "DEADLINE") and not method.full_name.startswith("grpc.health.")
        expect(not from_grpc or code in _WITHOUT_REASON or failure.metadata, f"{method.full_name}: no reason:", code, error.details())
        expect(failure.reason != "PLANNER_BUG" and code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN),
               f"{method.full_name}:", failure)
        return failure.reason


def _served(channel, method) -> bool:
    """An empty message is one of every type."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.client_streaming:
            channel.stream_unary(path)(iter([b""]), timeout=30)
        else:
            channel.unary_unary(path)(b"", timeout=30)
    except grpc.RpcError as error:
        return error.code() != grpc.StatusCode.UNIMPLEMENTED
    return True


def bombard(server: Server, rng: random.Random, key: Key, rounds: int, at_once: int = 40) -> dict[str, int]:
    """Random calls of every method, many at a time; the server is looked at after each batch. Calls by method."""
    channel = channel_to(server.address)
    counts: dict[str, int] = {}
    reasons: set[str] = set()
    served = [method for method in methods() if _served(channel, method)]
    for _ in range(rounds):
        for method in served:
            calls = [_call(channel, method, rng, key) for _ in range(at_once)]
            reasons |= {_end(call, method) for call in calls}
            counts[method.name] = counts.get(method.name, 0) + len(calls)
            server.watch()
            # Still there, and still making sense.
            channel.unary_unary("/bucketd.v1.Planner/GetCapabilities")(b"", timeout=30)
    channel.close()
    expect("" in reasons and len(reasons) > 5, "the messages were all of one kind:", reasons)
    return counts
