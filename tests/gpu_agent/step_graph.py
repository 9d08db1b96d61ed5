"""A sharded training step for two ranks as a captured-graph file (tests/data/SCHEMA.md): forward and backward of some layers,
whose parameters are gathered before use and whose gradients are reduced to shards.

    step_graph.py OUT [--layers N] [--parameters N] [--rows N] [--compute-us US] [--ranks N]
"""
import argparse
import json

WIDTH = 1024
GATHER, SCATTER = "_c10d_functional.all_gather_into_tensor.default", "_c10d_functional.reduce_scatter_tensor.default"


class Step:
    def __init__(self, ranks):
        self.ranks, self.nodes, self.results = ranks, [], []

    def add(self, op, inputs, rows, **more):
        inputs = list(dict.fromkeys(inputs))
        tensor = {"shape": [rows, WIDTH], "dtype": "bfloat16", "stride": [WIDTH, 1], "bytes": rows * WIDTH * 2}
        self.nodes.append({"id": len(self.nodes), "name": f"n{len(self.nodes)}", "op": op, "inputs": inputs, "args": [{"n": x} for x in inputs],
                           "outputs": [tensor], "est_us": 0.0, **more})
        return len(self.nodes) - 1

    def rows(self, n):
        return self.nodes[n]["outputs"][0]["shape"][0]

    def product(self, inputs, rows, us, module):
        return self.add("aten.mm.default", inputs, rows, est_us=us, flops=2 * rows * WIDTH * WIDTH, is_compute=True, module=module)

    def collective(self, op, kind, x, rows, param, reduce_op=None):
        coll = {"kind": kind, "group": "0", "group_size": self.ranks, "reduce_op": reduce_op, "bytes": max(rows, self.rows(x)) * WIDTH * 2,
                "alpha_us": 50.0, "busbw": 1e9, "param": param}
        start = self.add(op, [x], rows, coll=coll)
        return self.add("_c10d_functional.wait_tensor.default", [start], rows, alias_of=[start], wait_of=start)

    def gather(self, shard, param):
        return self.collective(GATHER, "ag", shard, self.rows(shard) * self.ranks, param)

    def scatter(self, gradient, param):
        return self.collective(SCATTER, "rs", gradient, self.rows(gradient) // self.ranks, param, "sum")

    def graph(self):
        last = {"id": len(self.nodes), "name": "output", "op": "output", "inputs": [n for n, _, _ in self.results], "args": [], "outputs": [], "est_us": 0.0,
                "out_desc": [{"node": n, "kind": kind, "fqn": fqn} for n, kind, fqn in self.results]}
        return {"schema": 1, "name": "two_rank_step", "kind": "joint", "mesh_shape": [self.ranks], "mesh_dim_names": ["dp"], "world_size": self.ranks,
                "gpus_per_node": self.ranks, "groups": {"0": {"ranks": list(range(self.ranks)), "mesh_dim": "dp"}}, "nodes": self.nodes + [last]}


def make(ranks, layers, parameters, rows, compute_us):
    step = Step(ranks)
    x = step.add("placeholder", [], rows, desc_kind="input")
    shards = {}
    for layer in range(layers):
        for p in range(parameters):
            fqn = f"layers.{layer}.linear{p}.weight"
            shards[layer, p] = (step.add("placeholder", [], rows // ranks * (p + 1), desc_kind="param", is_param=True, fqn=fqn), fqn)
    us = compute_us / parameters
    for layer in range(layers):
        for p in range(parameters):
            shard, fqn = shards[layer, p]
            x = step.product([x, step.gather(shard, fqn)], rows, us, f"layers.{layer}")
    for layer in reversed(range(layers)):
        for p in reversed(range(parameters)):
            shard, fqn = shards[layer, p]
            x = step.product([x, step.gather(shard, fqn)], rows, us, f"layers.{layer}")
            gradient = step.product([x], step.rows(shard) * ranks, us, f"layers.{layer}")
            step.results.append((step.scatter(gradient, fqn), "grad", fqn))
    return step.graph()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--parameters", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--compute-us", type=float, default=4000.0)
    args = parser.parse_args()
    with open(args.out, "w") as file:
        json.dump(make(args.ranks, args.layers, args.parameters, args.rows, args.compute_us), file)
