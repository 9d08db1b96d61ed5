from importlib.util import find_spec

if find_spec(f"{__name__}.planner_pb2") is None:
    raise ImportError("the wire stubs are missing; generate them with: python client/python/generate_wire.py")
