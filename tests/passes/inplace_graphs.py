"""Small random captured graphs with views, in-place ops, collectives and random ops, in the schema of tests/data/SCHEMA.md."""
RANKS = 4
ROWS, COLUMNS = 64, 8


class Builder:
    def __init__(self, rng, groups=1):
        self.rng, self.nodes, self.groups = rng, [], groups
        self.tensors = []  # ids of full-size tensors that later ops may read
        self.pending = []  # collectives without a wait so far

    def add(self, op, inputs, rows=ROWS, outputs=1, **more):
        tensor = {"shape": [rows, COLUMNS], "dtype": "float32", "stride": [COLUMNS, 1], "bytes": 4 * rows * COLUMNS}
        distinct = list(dict.fromkeys(inputs))
        node = {"id": len(self.nodes), "name": f"n{len(self.nodes)}", "op": op, "inputs": distinct,
                "args": [{"n": x} for x in distinct], "outputs": [dict(tensor) for _ in range(outputs)], "est_us": 0.0, **more}
        self.nodes.append(node)
        return node["id"]

    def pick(self):
        # Recent tensors are read most, as in real graphs.
        return self.tensors[-self.rng.randint(1, min(6, len(self.tensors)))]

    def call(self):
        x, y = self.pick(), self.pick()
        self.tensors.append(self.add("aten.mul.Tensor", [x, y], est_us=self.rng.choice((0.0, 3.5, 20.25))))

    def draw(self):
        self.tensors.append(self.add("aten.rand_like.default", [self.rng.randrange(3)], est_us=2.0))

    def view(self):
        x = self.pick()
        self.tensors.append(self.add("aten.view.default", [x], is_view=True, alias_of=[x]))

    def write(self):
        x, y = self.pick(), self.pick()
        self.tensors.append(self.add("aten.add_.Tensor", [x, y], mutates=[x], alias_of=[x], est_us=4.0))

    def write_two(self):
        x, y = self.pick(), self.pick()
        if x == y:
            return
        both = self.add("aten._foreach_neg_.default", [x, y], outputs=2, mutates=[x, y], alias_of=[x, y], est_us=5.0)
        piece = self.add("getitem", [both], alias_of=[both])
        self.nodes[piece]["args"].append(1)
        self.tensors.append(piece)

    def split(self):
        pieces = self.add("aten.topk.default", [self.pick()], outputs=2, est_us=6.0)
        for k in range(2):
            piece = self.add("getitem", [pieces], alias_of=[pieces])
            self.nodes[piece]["args"].append(k)
            self.tensors.append(piece)

    def start(self):
        x = self.pick()
        size = 4 * ROWS * COLUMNS
        coll = {"group": "0", "group_size": RANKS, "alpha_us": 16.0, "busbw": 3.6e11}
        kinds = ("ag", "rs", "ar", "ar", "ar_")
        if self.groups > 1:
            coll["group"] = str(self.rng.randrange(self.groups))
            kinds += ("a2a", "avg", "lost")
        kind = self.rng.choice(kinds)
        if kind == "ag":
            op, rows, more = "_c10d_functional.all_gather_into_tensor.default", ROWS * RANKS, {}
            coll.update(kind="ag", reduce_op=None, bytes=size * RANKS)
        elif kind == "a2a":
            op, rows, more = "_c10d_functional.all_to_all_single.default", ROWS, {}
            coll.update(kind="a2a", reduce_op=None, bytes=size)
        elif kind == "rs":
            op, rows, more = "_c10d_functional.reduce_scatter_tensor.default", ROWS // RANKS, {}
            coll.update(kind="rs", reduce_op="sum", bytes=size)
        else:
            in_place = {"mutates": [x], "alias_of": [x]} if kind == "ar_" else {}
            op, rows, more = "_c10d_functional.all_reduce" + ("_" if in_place else "") + ".default", ROWS, in_place
            coll.update(kind="ar", reduce_op="avg" if kind == "avg" else "sum", bytes=size)
        start = self.add(op, [x], rows=rows, coll=coll, **more)
        if kind != "lost":  # what is lost nobody waits for
            self.pending.append((start, rows))

    def wait(self):
        if not self.pending:
            return
        c, rows = self.pending.pop(self.rng.randrange(len(self.pending)))
        w = self.add("_c10d_functional.wait_tensor.default", [c], rows=rows, alias_of=[c], wait_of=c)
        if rows == ROWS:
            self.tensors.append(w)
        else:
            self.tensors.append(self.add("aten.resize.default", [w], est_us=1.0))


def random_graph(rng, groups=1, in_place=True):
    """With several groups also other kinds and reduce ops, a second lane, and collectives without a wait."""
    b = Builder(rng, groups)
    for _ in range(3):
        b.tensors.append(b.add("placeholder", [], desc_kind="input"))
    steps = [b.call, b.call, b.call, b.view, b.write, b.start, b.start, b.wait, b.wait]
    if rng.random() < 0.5:
        steps += [b.write_two, b.split]
    if not in_place:
        steps = [b.call, b.call, b.view, b.split, b.draw, b.start, b.start, b.wait, b.wait]
    if rng.random() < 0.4:
        # Nothing but their own rule holds these.
        steps = [b.draw, b.draw, b.call, b.wait, b.start]
    for _ in range(rng.randint(8, 26)):
        rng.choice(steps)()
    while b.pending:
        b.wait()
    last = b.tensors[-3:]
    out = b.add("output", last, outputs=0)
    b.nodes[out]["out_desc"] = [{"node": x, "kind": "output", "fqn": None} for x in last]
    return {"schema": 1, "name": "random", "kind": "bw", "mesh_shape": [RANKS], "mesh_dim_names": ["dp"], "world_size": RANKS,
            "gpus_per_node": 8, "groups": {str(k): {"ranks": list(range(RANKS)), "mesh_dim": "dp" if k < 2 else "world"} for k in range(groups)},
            "nodes": b.nodes}
