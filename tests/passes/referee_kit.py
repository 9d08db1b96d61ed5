"""What tests that compare bucketctl with the referee share. Standard library only."""
import glob
import heapq
import importlib.util
import json
import os
import subprocess

SOURCE = os.environ.get("BUCKETD_SOURCE_DIR") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.environ.get("BUCKETD_TEST_DATA") or os.path.join(SOURCE, "tests", "data")
BINARY = os.path.join(os.environ.get("BUCKETD_BIN") or os.path.join(SOURCE, "build", "bin"), "bucketctl")
PROFILES = ("h100_nvlink", "h100_launch", "slow_network", "small_batch")
TIMES = ("total_us", "exposed_us", "compute_us", "comm_us", "busiest_group_us", "copies_us", "lower_bound_us")


def load_referee():
    spec = importlib.util.spec_from_file_location("referee", os.path.join(DATA, "referee", "referee.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


referee = load_referee()


def graph_paths(pattern="*"):
    return sorted(glob.glob(os.path.join(DATA, "graphs", pattern + ".json.gz")))


def bucketctl(*args, piped=None):
    return subprocess.run([BINARY, *args], input=piped, capture_output=True, text=True, timeout=300)


def simulate(graph_path, plan_path, profile):
    """The figures, or None if the plan was refused; anything else is an error."""
    args = ["simulate", graph_path, *([plan_path] if plan_path else []), "--profile", profile, "--json"]
    run = bucketctl(*args)
    if run.returncode == 1:
        return None, run.stderr
    if run.returncode != 0:
        raise AssertionError(f"bucketctl {' '.join(args)} exited with {run.returncode}: {run.stderr}")
    return json.loads(run.stdout), run.stderr


def judge(graph, plan, profile):
    """The same from the referee; `profile` is its nine numbers."""
    try:
        return referee.judge(graph, plan, profile), ""
    except ValueError as error:
        return None, "\n".join(error.args[0])


def differences(ours, theirs):
    """What two simulations disagree on beyond the contract: 0.01 us or 1e-7 of the total, bytes exactly."""
    allowed = max(0.01, 1e-7 * theirs["total_us"])
    found = [f"{key}: {ours[key]} here, {theirs[key]} by the referee" for key in TIMES if abs(ours[key] - theirs[key]) > allowed]
    found += [f"{key}: {ours[key]!r} here, {theirs[key]!r} by the referee"
              for key in ("peak_bytes", "peak_at", "collectives") if ours[key] != theirs[key]]
    return found


def random_buckets(graph, rng):
    """Disjoint buckets of collectives with one key, of every mode."""
    by_key = {}
    waited = {n["wait_of"] for n in graph["nodes"] if "wait_of" in n}
    for n in graph["nodes"]:
        if n.get("coll") and n["coll"]["kind"] in ("ag", "rs", "ar") and n["id"] in waited:
            by_key.setdefault(referee.bucket_key(n), []).append(n["id"])
    buckets = []
    for ids in by_key.values():
        # Neighbours mostly: far-off members seldom can share a bucket.
        k = 0
        while k < len(ids):
            size = rng.choice((1, 2, 3, 4, 7))
            members = ids[k:k + size]
            k += size
            if len(members) < 2 or rng.random() < 0.3:
                continue
            if rng.random() < 0.5:
                rng.shuffle(members)
            mode, copies = rng.choice((("packed", "compute"), ("packed", "comm"), ("grouped", "compute")))
            buckets.append({"members": members, "mode": mode, "copies": copies})
    rng.shuffle(buckets)
    return buckets


def random_order(graph, buckets, rng, keep_random_ops=True):
    """An order that respects data edges, or None if the buckets depend on one another in a circle."""
    nodes = graph["nodes"]
    wait_of = {n["wait_of"]: n["id"] for n in nodes if "wait_of" in n}
    unit = {}
    for k, b in enumerate(buckets):
        for m in b["members"]:
            unit[m], unit[wait_of[m]] = f"start:{k}", f"wait:{k}"
    of = lambda i: unit.get(i, i)
    edges = [(f"start:{k}", f"wait:{k}") for k in range(len(buckets))]
    for n in nodes:
        edges += [(of(x), of(n["id"])) for x in n["inputs"] if not (of(x) == of(n["id"]) and str(of(x)).startswith("wait"))]
    if keep_random_ops:
        word = lambda n: n["op"].split(".")[1 if "." in n["op"] else 0]
        kept = [n["id"] for n in nodes if any(w in word(n) for w in referee.RANDOM) and not word(n).endswith("_backward")]
        edges += list(zip(kept, kept[1:]))
    edges = set(edges)
    after, waiting = {}, {of(n["id"]): 0 for n in nodes}
    for a, b in sorted(edges, key=str):
        after.setdefault(a, []).append(b)
        waiting[b] += 1
    noise = rng.choice((0, 5, 50, len(nodes)))
    first = {}
    for n in nodes:
        first.setdefault(of(n["id"]), n["id"])
    priority = {u: first[u] + rng.random() * noise for u in waiting}
    ready = [(priority[u], str(u), u) for u, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        u = heapq.heappop(ready)[2]
        order.append(u)
        for v in after.get(u, ()):
            waiting[v] -= 1
            if waiting[v] == 0:
                heapq.heappush(ready, (priority[v], str(v), v))
    return order if len(order) == len(waiting) else None


def random_plan(graph, rng):
    """A legal plan for a graph without in-place ops."""
    buckets = random_buckets(graph, rng)
    while True:
        order = random_order(graph, buckets, rng)
        if order is not None:
            return {"buckets": buckets, "order": order}
        buckets.pop(rng.randrange(len(buckets)))


def mutate(plan, graph, rng):
    """One random change that a correct plan seldom survives."""
    plan = json.loads(json.dumps(plan))
    order, buckets, size = plan["order"], plan["buckets"], len(graph["nodes"])
    i, j = rng.randrange(len(order)), rng.randrange(len(order))

    def swap():
        order[i], order[j] = order[j], order[i]

    def move():
        order.insert(j, order.pop(i))

    def drop():
        del order[i]

    def repeat():
        order.insert(j, order[i])

    def foreign():
        order.insert(i, rng.choice((size + 10**6, "start:99999", "wait:", "start:00", "stop:0", 2.0, True, None)))

    def member():
        rng.choice(buckets)["members"].append(rng.choice((rng.randrange(size), size + 5, -1)))

    def twice():
        members = rng.choice(buckets)["members"]
        members.append(members[0])

    def lone():
        bucket = rng.choice(buckets)
        bucket["members"] = bucket["members"][:1]

    def spelling():
        bucket = rng.choice(buckets)
        bucket[rng.choice(("mode", "copies"))] = "sideways"

    def steal():
        rng.choice(buckets)["members"] += rng.choice(buckets)["members"][:1]

    def token():
        tokens = [k for k, x in enumerate(order) if isinstance(x, str)]
        a, b = rng.choice(tokens), rng.choice(tokens)
        order[a], order[b] = order[b], order[a]

    changes = [swap, move, drop, repeat, foreign]
    if buckets:
        changes += [member, twice, lone, spelling, steal, token]
    rng.choice(changes)()
    return plan
