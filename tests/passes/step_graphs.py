"""Random training steps as captured-graph files (tests/data/SCHEMA.md), and random cost profiles.

Forward, backward and joint steps of a few layers over one to three process groups: sharded, replicated and hybrid parameters
with shared casts and uneven shards, tensor-parallel and all-to-all collectives on the path, views, in-place and random ops,
waits with several users and with none. Program order is drawn as well: neatly one after the other, collectives and compute of
many layers interleaved as AutoParallel leaves them, or anything that the edges allow.
"""
import heapq

GATHER, SCATTER = "_c10d_functional.all_gather_into_tensor.default", "_c10d_functional.reduce_scatter_tensor.default"
REDUCE, SWAP = "_c10d_functional.all_reduce.default", "_c10d_functional.all_to_all_single.default"
WIDTH = 64
ITEM = {"bfloat16": 2, "float32": 4}


class StepBuilder:
    def __init__(self, rng):
        self.rng, self.nodes = rng, []
        self.sizes = [rng.choice((2, 4, 8)) for _ in range(rng.choice((1, 1, 2, 3)))]
        self.links = [(rng.choice((2.0, 12.0, 60.0)), rng.choice((4e9, 4e10, 3.6e11))) for _ in self.sizes]
        self.results = []  # of the output node: (id, kind, fqn)

    def add(self, op, inputs, rows, dtype="bfloat16", outputs=1, **more):
        tensor = {"shape": [rows, WIDTH], "dtype": dtype, "stride": [WIDTH, 1], "bytes": rows * WIDTH * ITEM[dtype]}
        inputs = list(dict.fromkeys(inputs))
        self.nodes.append({"id": len(self.nodes), "name": f"n{len(self.nodes)}", "op": op, "inputs": inputs, "args": [{"n": x} for x in inputs],
                           "outputs": [dict(tensor) for _ in range(outputs)], "est_us": 0.0, **more})
        return len(self.nodes) - 1

    def rows(self, n):
        return self.nodes[n]["outputs"][0]["shape"][0]

    def dtype(self, n):
        return self.nodes[n]["outputs"][0]["dtype"]

    def us(self):
        return self.rng.choice((0.0, 3.0, 5.5, 20.25, 90.0, 400.0))

    def call(self, op, inputs, rows, dtype="bfloat16", **more):
        return self.add(op, inputs, rows, dtype, est_us=self.us(), **more)

    def product(self, inputs, rows, dtype="bfloat16"):
        return self.call("aten.mm.default", inputs, rows, dtype, flops=2 * rows * WIDTH * WIDTH, is_compute=True)

    def start(self, op, x, rows, group, kind, reduce_op=None):
        ranks, (alpha, busbw) = self.sizes[group], self.links[group]
        size = max(rows, self.rows(x)) * WIDTH * ITEM[self.dtype(x)]
        return self.add(op, [x], rows, self.dtype(x), coll={
            "kind": kind, "group": str(group), "group_size": ranks, "reduce_op": reduce_op, "bytes": size,
            "alpha_us": 2 * alpha if kind == "ar" else alpha, "busbw": busbw})

    def wait(self, start):
        return self.add("_c10d_functional.wait_tensor.default", [start], self.rows(start), self.dtype(start), alias_of=[start], wait_of=start)

    def gather(self, x, group):
        return self.wait(self.start(GATHER, x, self.rows(x) * self.sizes[group], group, "ag"))

    def scatter(self, x, group, reduce_op="avg"):
        return self.wait(self.start(SCATTER, x, max(1, self.rows(x) // self.sizes[group]), group, "rs", reduce_op))

    def reduce(self, x, group, reduce_op="sum"):
        return self.wait(self.start(REDUCE, x, self.rows(x), group, "ar", reduce_op))

    def view(self, x):
        return self.add("aten.view.default", [x], self.rows(x), self.dtype(x), is_view=True, alias_of=[x])

    def finish(self, order, name, kind):
        """The graph with its nodes in this order."""
        place = {old: new for new, old in enumerate(order)}
        nodes = []
        for new, old in enumerate(order):
            n = dict(self.nodes[old], id=new)
            for key in ("inputs", "alias_of", "mutates"):
                if key in n:
                    n[key] = [place[x] for x in n[key]]
            n["args"] = [{"n": x} for x in n["inputs"]] + [a for a in n["args"] if not isinstance(a, dict)]
            if "wait_of" in n:
                n["wait_of"] = place[n["wait_of"]]
            nodes.append(n)
        last = {"id": len(nodes), "name": "output", "op": "output", "inputs": list(dict.fromkeys(place[x] for x, _, _ in self.results)), "args": [], "outputs": [],
                "est_us": 0.0, "out_desc": [{"node": place[x], "kind": kind, "fqn": fqn} for x, kind, fqn in self.results]}
        return {"schema": 1, "name": name, "kind": kind, "mesh_shape": self.sizes, "mesh_dim_names": [f"dim{k}" for k in range(len(self.sizes))],
                "world_size": 8, "gpus_per_node": 8,
                "groups": {str(k): {"ranks": list(range(size)), "mesh_dim": f"dim{k}"} for k, size in enumerate(self.sizes)}, "nodes": nodes + [last]}


class Step:
    """One random step. With `collectives` off every group is a single machine: nothing is sent."""

    def __init__(self, rng, collectives=True):
        self.rng, self.b, self.collectives = rng, StepBuilder(rng), collectives
        self.kind = rng.choice(("fw", "bw", "joint"))
        self.style = rng.choice(("sharded", "sharded", "replicated", "hybrid", "mixed"))
        self.in_place, self.random = rng.random() < 0.4, rng.random() < 0.4
        self.rows = rng.choice((8, 64, 512))
        self.weights, self.saved = [], []

    def chance(self, p):
        return self.rng.random() < p

    def group(self):
        return self.rng.randrange(len(self.b.sizes)) if self.style == "mixed" else 0

    def parameter(self, layer, index):
        """A shard, and how its full value comes about."""
        b, fqn = self.b, f"layers.{layer}.linear{index}.weight"
        group, rows = self.group(), self.rng.choice((1, 8, 24, 64, 640))
        shard = b.add("placeholder", [], rows, "float32", desc_kind="param", is_param=True, fqn=fqn)
        cast = b.call("aten._to_copy.default", [shard], rows) if self.chance(0.7) else shard
        if self.chance(0.2):  # the last rank's shard is short: every rank sends the padded one
            cast = b.call("aten.constant_pad_nd.default", [cast], rows + 1, b.dtype(cast))
        return {"fqn": fqn, "group": group, "shard": cast, "rows": rows, "tied": self.chance(0.1)}

    def full(self, weight):
        if not self.collectives or self.style == "replicated":
            return weight["shard"]
        return self.b.gather(weight["shard"], weight["group"])

    def on_path(self, x):
        """Something that the rest of the step waits for."""
        b, group = self.b, self.rng.randrange(len(self.b.sizes))
        what = self.rng.randrange(4)
        if what == 0:
            return b.reduce(x, group)
        if what == 1:
            return b.wait(b.start(SWAP, x, b.rows(x), group, "a2a"))
        if what == 2 and b.rows(x) % b.sizes[group] == 0:
            return b.gather(b.call("aten.mul.Tensor", [b.scatter(x, group, "sum")], b.rows(x) // b.sizes[group]), group)
        return b.gather(b.call("aten.slice.Tensor", [x], max(1, b.rows(x) // b.sizes[group])), group)

    def decorate(self, x):
        """Ops around the products."""
        b = self.b
        if self.random and self.chance(0.4):
            x = b.call(self.rng.choice(("aten.native_dropout.default", "aten.rand_like.default")), [x], b.rows(x), b.dtype(x))
        if self.in_place and self.chance(0.5):
            x = b.call("aten.add_.Tensor", [x, self.rng.choice(self.saved or [x])], b.rows(x), b.dtype(x), mutates=[x], alias_of=[x])
        if self.chance(0.4):
            x = b.view(x)
        if self.chance(0.3):
            x = b.call("aten.mul.Tensor", [x, self.rng.choice(self.saved or [x])], b.rows(x))
        if self.collectives and self.chance(0.25):
            x = self.on_path(x)
        return x

    def forward(self, x):
        for weight in self.weights:
            full = self.full(weight)
            self.saved.append(x)
            users = [self.b.product([x, full], self.rows)]
            if self.chance(0.2):
                users.append(self.b.call("aten.sum.default", [full], 1))  # a wait with two users
            if self.chance(0.1):
                self.full(weight)  # gathered for nobody
            x = self.decorate(users[0])
            if len(users) > 1 and self.chance(0.5):
                self.b.results.append((users[1], "output", None))
        self.b.results.append((x, "output", None))
        return x

    def gradient(self, g, weight):
        b, rows = self.b, weight["rows"] * self.b.sizes[weight["group"]]
        grad = b.product([g, self.rng.choice(self.saved or [g])], rows, self.rng.choice(("bfloat16", "float32")))
        if self.in_place and self.chance(0.2):
            grad = b.call("aten.mul_.Tensor", [grad], rows, b.dtype(grad), mutates=[grad], alias_of=[grad])
        if self.collectives:
            if self.style == "replicated":
                grad = b.reduce(grad, weight["group"], "avg")
            else:
                grad = b.scatter(grad, weight["group"])
                if self.style == "hybrid" and len(b.sizes) > 1:
                    grad = b.reduce(grad, 1)
        if self.chance(0.3):
            grad = b.call("aten._to_copy.default", [grad], b.rows(grad), "float32")
        b.results.append((grad, "grad", weight["fqn"]))

    def backward(self, g):
        for weight in reversed(self.weights):
            self.gradient(g, weight)
            if weight["tied"]:
                self.gradient(g, weight)
            g = self.decorate(self.b.product([g, self.full(weight)], self.rows))
        self.b.results.append((g, "grad", None))

    def order(self):
        """Edges always hold; how much else does is drawn."""
        nodes, rng = self.b.nodes, self.rng
        noise = rng.choice((0, 0, 8, 40, len(nodes)))
        early = rng.choice((0, 0, 30, 1000))  # how far ahead collectives and what they need stand
        ahead = set()
        for n in reversed(nodes):
            if n.get("coll") or (n["id"] in ahead and not n.get("is_compute")):
                ahead |= {n["id"], *n["inputs"]}
        priority = [n["id"] + rng.random() * noise - (early if n["id"] in ahead else 0) for n in nodes]
        after, missing = {}, [len(n["inputs"]) for n in nodes]
        for n in nodes:
            for x in n["inputs"]:
                after.setdefault(x, []).append(n["id"])
        # Placeholders first, as in every captured graph.
        ready = [(n["op"] != "placeholder", priority[n["id"]], n["id"]) for n in nodes if not n["inputs"]]
        heapq.heapify(ready)
        order = []
        while ready:
            x = heapq.heappop(ready)[2]
            order.append(x)
            for y in after.get(x, ()):
                missing[y] -= 1
                if missing[y] == 0:
                    heapq.heappush(ready, (True, priority[y], y))
        return order

    def build(self, name):
        x = self.b.add("placeholder", [], self.rows, desc_kind="tangent" if self.kind == "bw" else "input")
        if self.kind == "bw":
            self.saved = [self.b.add("placeholder", [], self.rows, desc_kind="saved") for _ in range(2)]
        for layer in range(self.rng.choice((0, 1, 2, 3, 5))):
            self.weights += [self.parameter(layer, k) for k in range(self.rng.choice((1, 2, 4)))]
        if self.kind != "bw":
            x = self.forward(x)
        if self.kind != "fw":
            self.backward(x)
        return self.b.finish(self.order(), name, self.kind)


def random_step(rng, name):
    return Step(rng, collectives=rng.random() < 0.95).build(name)


def random_profile(rng):
    """Most figures moderate, some systems far off in one of them."""
    profile = {"compute_scale": rng.uniform(0.2, 3), "alpha_scale": rng.uniform(0.2, 4), "busbw_scale": rng.uniform(0.1, 3), "gamma_us": rng.uniform(0, 5),
               "hbm_bytes_per_s": rng.uniform(1e12, 4e12), "copy_launch_us": rng.uniform(1, 5), "overlap_slowdown": rng.choice((0.0, rng.uniform(0, 0.3))),
               "host_us_per_kernel": 0.0, "host_us_per_collective": 0.0, "comm_copy_share": rng.choice((0.0, 0.5, 1.0))}
    extremes = ({}, {"hbm_bytes_per_s": 2e10, "copy_launch_us": 60.0}, {"gamma_us": 80.0}, {"busbw_scale": 0.004}, {"busbw_scale": 30.0, "alpha_scale": 0.05},
                {"host_us_per_kernel": 12.0, "host_us_per_collective": 50.0}, {"compute_scale": 0.01}, {"alpha_scale": 0.0, "gamma_us": 0.0},
                {"alpha_scale": 30.0}, {"overlap_slowdown": 1.0})
    return {**profile, **rng.choice(extremes)}
