"""VerifyPlan and the referee say the same of 10,000 random plans, half of them legal: small random graphs with views, in-place
ops, several outputs, several groups and lanes, random ops and collectives that nobody waits for. `--seed N` draws others."""
import json
import os
import random
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from inplace_graphs import random_graph
from referee_kit import SOURCE, mutate, random_buckets, random_order, referee

SEED = 20
GRAPHS, PLANS_EACH = 1000, 10
TOOL = os.path.join(os.environ.get("BUCKETD_BIN") or os.path.join(SOURCE, "build", "bin"), "verdict_tool")
# Neither side's verdict hangs on costs.
PROFILE = {"compute_scale": 1.0, "busbw_scale": 1.0, "hbm_bytes_per_s": 1e12, "alpha_scale": 1.0, "gamma_us": 0.0,
           "copy_launch_us": 0.0, "overlap_slowdown": 0.0, "host_us_per_kernel": 0.0, "host_us_per_collective": 0.0}


def with_odd_members(plan, graph, rng):
    """Any collectives in a bucket: of other groups, kinds and reduce ops, without a wait, in another bucket."""
    collectives = [n["id"] for n in graph["nodes"] if n.get("coll")]
    if len(collectives) < 2:
        return plan
    plan = json.loads(json.dumps(plan))
    if plan["buckets"]:
        rng.choice(plan["buckets"])["members"][0] = rng.choice(collectives)
    else:
        plan["buckets"].append({"members": rng.sample(collectives, 2)})
    return plan


def plan_for(graph, rng):
    """Respects data edges, seldom more; what holds in-place ops and random ops is left to chance, and some are broken on purpose."""
    buckets = random_buckets(graph, rng)
    order = random_order(graph, buckets, rng, keep_random_ops=rng.random() < 0.7)
    while order is None:
        buckets.pop(rng.randrange(len(buckets)))
        order = random_order(graph, buckets, rng)
    plan = {"buckets": buckets, "order": order}
    chance = rng.random()
    if chance < 0.1:
        return with_odd_members(plan, graph, rng)
    return mutate(plan, graph, rng) if chance < 0.3 else plan


def by_referee(graph, plan):
    try:
        referee.expand(graph, plan, PROFILE)
        return "legal"
    except ValueError as error:
        return "illegal: " + error.args[0][0]


class Verdicts(unittest.TestCase):
    def test_ten_thousand_are_the_referees(self):
        rng = random.Random(SEED)
        cases, lines = [], []
        for _ in range(GRAPHS):
            graph = random_graph(rng, groups=rng.choice((1, 2, 3)), in_place=rng.random() < 0.6)
            text = json.dumps(graph)
            lines.append("G" + text)
            for _ in range(PLANS_EACH):
                plan = plan_for(graph, rng)
                lines.append("P" + json.dumps(plan))
                cases.append((by_referee(graph, plan), text, lines[-1]))
        run = subprocess.run([TOOL], input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=240)
        self.assertEqual(run.returncode, 0, run.stderr)
        ours = run.stdout.splitlines()
        self.assertEqual(len(ours), GRAPHS * PLANS_EACH)
        for is_ours, (is_theirs, graph, plan) in zip(ours, cases):
            if (is_ours == "legal") != (is_theirs == "legal"):
                self.fail(f"here: {is_ours}; referee: {is_theirs}\n{graph}\n{plan}")
        legal = ours.count("legal")
        self.assertTrue(0.4 < legal / len(ours) < 0.6, f"{legal} of {len(ours)} are legal")
        # Every rule decides some of them.
        reasons = "\n".join(ours)
        for reason in ("needs two or more", "there is no node", "is not a collective", "nobody waits", "member twice",
                       "already in bucket", "differ in", "stands twice", "is missing", "is inside bucket", "runs before its input",
                       "stands before", "runs before wait", "writes in place", "keep their relative order"):
            self.assertTrue(reason in reasons, reason)


if __name__ == "__main__":
    if "--seed" in sys.argv:
        at = sys.argv.index("--seed")
        SEED = int(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    unittest.main()
