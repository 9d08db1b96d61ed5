"""A client process for tests/faults to kill: says on stdout what it has done, and then waits for its end.

    victim.py ADDRESS ask FILE             GetPlan with the serialised request in FILE
    victim.py ADDRESS upload FILE COUNT    UploadGraph with the first COUNT of the messages in FILE, length-prefixed
"""

import struct
import sys
import threading

import grpc


def messages(path: str):
    with open(path, "rb") as file:
        while size := file.read(4):
            yield file.read(struct.unpack("<I", size)[0])


def say(what: str) -> None:
    print(what, flush=True)


def main() -> None:
    address, what, path = sys.argv[1:4]
    channel = grpc.insecure_channel(address)
    grpc.channel_ready_future(channel).result(60)
    if what == "ask":
        with open(path, "rb") as file:
            request = file.read()
        call = channel.unary_unary("/bucketd.v1.Planner/GetPlan").future(request, timeout=600)
        say("asked")
        call.add_done_callback(lambda done: say("answered"))
    else:
        count = int(sys.argv[4])

        def parts():
            for i, message in enumerate(messages(path)):
                if i == count:
                    break
                yield message
            say("sent")
            threading.Event().wait()

        call = channel.stream_unary("/bucketd.v1.Planner/UploadGraph").future(parts(), timeout=600)
    threading.Event().wait()
    del call  # until here: a call that nobody holds is cancelled


if __name__ == "__main__":
    main()
