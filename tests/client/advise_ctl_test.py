"""bucketctl advise: what it says of graphs and of traces is what plans of them take, and what it cannot advise on is refused."""
import json
import unittest

from ctl_case import REFUSED, USAGE, CtlCase
from referee_kit import graph_paths

GRAPH = graph_paths("llama3_debug_fsdp8.bw")[0]
OTHER = graph_paths("llama3_debug_fsdp8.fw")[0]


class AdviseTest(CtlCase):
    def advise(self, *args):
        return json.loads(self.run_ctl("advise", *args, "--json").stdout)

    def test_advice_of_a_step_is_what_manual_plans_of_its_graphs_take(self):
        """A wrapping is a bucket list, and FSDP2's prefetching a distance."""
        advice = self.advise(OTHER, GRAPH, "--profile", "slow_network")
        self.assertEqual([len(one["units"]) for one in advice["tried"]], [8, 8, 14, 5])
        self.assertEqual([one["wrapping"] for one in advice["tried"]], ["blocks", "blocks", "halves of blocks", "pairs of blocks"])
        for one in advice["tried"]:
            buckets = ",".join("+".join(unit) for unit in one["units"])
            plans = [json.loads(self.run_ctl("plan", graph, "--mode", "manual", "--buckets", buckets, "--memory-limit", "100x",
                                             "--prefetch-forward", str(one["prefetch_forward"]), "--profile", "slow_network",
                                             "--prefetch-backward", str(one["prefetch_backward"]), "--json").stdout)["planned"]
                     for graph in (OTHER, GRAPH)]
            self.assertAlmostEqual(one["step_us"], sum(plan["total_us"] for plan in plans), places=3)
            self.assertEqual(one["peak_bytes"], max(plan["peak_bytes"] for plan in plans))
        fits = [one for one in advice["tried"] if one["peak_bytes"] <= advice["memory_limit_bytes"]]
        fastest = min(one["step_us"] for one in fits)
        enough = fastest <= 0.995 * advice["now"]["step_us"]
        self.assertEqual(advice["advised"]["step_us"], fastest if enough else advice["now"]["step_us"])

    def test_advice_keeps_parameters_where_the_memory_is_there(self):
        kept = graph_paths("llama3_debug_fsdp8.joint")[0]
        frugal = self.advise(OTHER, GRAPH, "--kept", kept, "--memory-limit", "1.0x")
        self.assertTrue(frugal["now"]["reshard_after_forward"] and frugal["advised"]["reshard_after_forward"])
        generous = self.advise(OTHER, GRAPH, "--kept", kept, "--memory-limit", "2x")
        self.assertFalse(generous["advised"]["reshard_after_forward"])
        self.assertLess(generous["advised"]["step_us"], frugal["advised"]["step_us"])
        self.assertIsNone(self.advise(OTHER)["advised"]["reshard_after_forward"])
        self.assertIn("now*", self.run_ctl("advise", OTHER, GRAPH, "--units", "tok_embeddings,layers.[0-5],norm+output", "--memory-limit", "1B").stdout)

    def test_advice_that_nobody_can_follow_is_refused(self):
        for args, said in (((graph_paths("moe_debug_fsdp4_ep4.joint")[0],), "gathered over dp_shard and over efsdp"),
                           ((graph_paths("llama3_debug_ddp8.joint")[0],), "there is nothing to wrap"),
                           ((GRAPH,), "is a backward: give its forward, too"),
                           ((OTHER, "--units", "head"), "no entry of --units holds a parameter"),
                           ((GRAPH, "--kept", GRAPH), "gathers parameters again in its backward"),
                           ((OTHER, "--kept", OTHER), "does not gather parameters again"),
                           ((OTHER, GRAPH, "--kept", graph_paths("llama3_8b_fsdp8.joint")[0]), "wraps other modules than")):
            self.assertIn(said, self.run_ctl("advise", *args, expect=REFUSED).stderr)
        self.run_ctl("advise", OTHER, "--units", "layers.[", expect=USAGE)
        self.run_ctl("advise", OTHER, "--memory-limit", "much", expect=USAGE)

    def trace(self, name, blocks, hides):
        """A step of FSDP2 as torch.profiler writes it: embeddings, blocks of 100 us, [norm, output]. `hides`: collectives run beside compute."""
        events, now = [], [1000.0]

        def span(category, name, start, dur, args=None, thread=1):
            events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": dur, "args": args or {}})

        def mark(label, dur=1.0):
            span("user_annotation", f"FSDP::{label}", now[0], dur)
            now[0] += dur

        def collective(label, op, shard):
            dims = [[4 * shard], [shard]] if "gather" in op else [[shard], [4 * shard]]
            span("cpu_op", op, now[0] + 1, 1, {"Input Dims": dims, "Input type": ["float", "float"]})
            span("user_annotation", "gloo:x", now[0] + (21 if hides else 2), 16, thread=2)
            mark(label, 20.0)

        units = ["tok_embeddings", *(f"layers.{i}" for i in range(blocks)), "norm, output"]
        mark("root_pre_forward")
        for unit in units:
            collective(f"all_gather ({unit})", "c10d::_allgather_base_", 65536)
            mark(f"pre_forward ({unit})")
            now[0] += 100
            mark(f"post_forward ({unit})")
        for unit in reversed(units):
            mark(f"pre_backward ({unit})")
            collective(f"all_gather ({unit})", "c10d::_allgather_base_", 65536)
            now[0] += 200
            collective(f"post_backward_reduce ({unit})", "c10d::_reduce_scatter_base_", 65536)
        mark("root_post_backward_callback")
        with open(self.path(name), "w") as file:
            json.dump({"traceEvents": events}, file)
        return self.path(name)

    def test_advice_of_a_trace_is_of_what_it_shows(self):
        trace = self.trace("step.json", 4, hides=True)
        advice = self.advise("--trace", trace, "--profile", "h100_nvlink", "--memory-limit", "9x")
        self.assertEqual(advice["now"]["units"], [["tok_embeddings"], ["layers.0"], ["layers.1"], ["layers.2"], ["layers.3"], ["norm", "output"]])
        self.assertEqual({one["wrapping"] for one in advice["tried"]}, {"as given", "pairs of blocks"})
        self.assertTrue(advice["now"]["reshard_after_forward"])
        self.assertEqual({one["reshard_after_forward"] for one in advice["tried"]}, {True, False})
        self.assertEqual((advice["trace"]["steps"], advice["trace"]["waits_at_launch"]), (1, False))
        # 6 x 300 us of kernels, and a scale of the profile changes nothing about what was measured.
        self.assertGreater(advice["now"]["step_us"], 1800)
        scaled = self.advise("--trace", trace, "--profile", "small_batch")["now"]
        self.assertGreater(scaled["step_us"], 1800)

    def test_advice_of_a_host_that_waits_is_what_its_launches_take(self):
        advice = self.advise("--trace", self.trace("step.json", 4, hides=False), "--profile", "cpu_loopback", "--memory-limit", "9x")
        self.assertTrue(advice["trace"]["waits_at_launch"])
        for one in advice["tried"]:
            self.assertEqual((one["prefetch_forward"], one["prefetch_backward"]), (1, 1))
            # 0.5 + 3 ms each, and 1 MiB over 1 GB/s; 92 us in marks and in no collective. Nothing is hidden.
            launches = len(one["units"]) * (3 if one["reshard_after_forward"] else 2)
            self.assertGreater(one["step_us"], 1800 + 3500 * launches)
        alone = 1800 + 18 * (3500 + 0.75 * 4 * 65536 * 4 / 1000) + 92
        packed = advice["now"]["step_us"] - alone  # [norm, output] is of two modules: three collectives are packed and unpacked
        self.assertTrue(3 * 2 * 10 < packed < 3 * (2 * 10 + 2 * 2 * 1048576 / 8000), packed)

    def test_what_is_no_traced_step_is_refused_with_what_to_record(self):
        trace = self.trace("step.json", 2, hides=False)
        with open(trace) as file:
            events = json.load(file)["traceEvents"]
        for name, text in (("cut.json", json.dumps({"traceEvents": events})[:-9]), ("none.json", '{"traceEvents": []}'), ("text.json", "step"),
                           ("half.json", json.dumps({"traceEvents": events[:20]}))):
            with open(self.path(name), "w") as file:
                file.write(text)
            error = self.run_ctl("advise", "--trace", self.path(name), expect=REFUSED).stderr
            self.assertIn("recorded by torch.profiler.profile(record_shapes=True)", error)
        for args in (("--trace", trace, GRAPH), (), ("--trace", trace, "--units", "layers.0"), (GRAPH, "--ranks-per-node", "2"),
                     ("--trace", self.path("absent.json"))):
            self.run_ctl("advise", *args, expect=USAGE)


if __name__ == "__main__":
    unittest.main()
