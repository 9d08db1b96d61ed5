"""bucketctl's contract: exit codes, one JSON object on stdout, errors that say what was expected."""
import gzip
import json
import os
import re
import unittest
from xml.etree import ElementTree

from ctl_case import DONE, REFUSED, UNAVAILABLE, USAGE, CtlCase
from referee_kit import bucketctl, graph_paths, referee

GRAPH = graph_paths("llama3_debug_fsdp8.bw")[0]
OTHER = graph_paths("llama3_debug_fsdp8.fw")[0]


class BucketctlTest(CtlCase):
    def test_json_is_one_object_on_stdout(self):
        for args in (("plan", GRAPH), ("simulate", GRAPH), ("digest", GRAPH)):
            self.assertIsInstance(json.loads(self.run_ctl(*args, "--json").stdout), dict)

    def test_a_picture_is_xml_whatever_names_hold_and_plans_with_control_characters_make_none(self):
        graph, plan, picture = self.path("odd.json"), self.path("plan.json"), self.path("odd.svg")
        with gzip.open(GRAPH, "rt") as file:
            captured = json.load(file)
        captured["mesh_dim_names"] = ["<&\uffff"]
        for group in captured["groups"].values():
            group["mesh_dim"] = "<&\uffff"
        with open(graph, "w") as file:
            json.dump(captured, file)
        self.run_ctl("plan", graph, "--mode", "greedy", "--plan-out", plan)
        self.run_ctl("trace", graph, plan, "--out", picture)
        ElementTree.parse(picture)
        with open(plan) as file:
            planned = json.load(file)
        with open(plan, "w") as file:
            json.dump({**planned, "mode": "gr\x01ow"}, file)
        error = self.run_ctl("trace", graph, plan, "--out", picture, expect=REFUSED).stderr
        self.assertIn('plan: mode: "gr\\x01ow" has a control character (byte 2)', error)

    def test_help_teaches_with_an_example(self):
        self.assertRegex(self.run_ctl("--version").stdout, r"^bucketctl \d+\.\d+\.\d+\n$")
        commands = re.findall(r"^  ([a-z]+)  ", self.run_ctl("--help").stdout.split("Options:")[1], re.MULTILINE)
        self.assertLess({"plan", "advise", "audit", "store"}, set(commands))
        for command in commands:
            text = self.run_ctl(command, "--help").stdout
            self.assertIn(f"\n  bucketctl {command} ", text)
            for word in re.findall(r"^  ([a-z-]+)  ", text.partition("\nSubcommands:")[2], re.MULTILINE):
                self.assertRegex(self.run_ctl(command, word, "--help").stdout, rf"\n  bucketctl {command} {word}\s")

    def test_usage_errors_exit_with_two(self):
        for args in ((), ("fly",), ("plan",), ("plan", GRAPH, "--wings"), ("trace", GRAPH), ("plan", self.path("absent.json.gz")),
                     ("simulate", GRAPH, self.path("absent.json")), ("show", self.path("absent.json")),
                     ("plan", GRAPH, "--memory-limit", "much"), ("plan", GRAPH, "--memory-limit", "1.05y"),
                     ("plan", GRAPH, "--memory-limit", "-5%"), ("plan", GRAPH, "--memory-limit", "0.0000001x"), ("plan", GRAPH, "--param-order", self.path("absent")),
                     ("plan", GRAPH, "--reorder-compute", "none")):  # bound nothing while it was there
            self.run_ctl(*args, expect=USAGE)

    def test_a_file_that_makes_no_sense_exits_with_one_whichever_it_is(self):
        plan, wrong = self.path("plan.json"), self.path("wrong.json")
        self.run_ctl("plan", GRAPH, "--mode", "none", "--plan-out", plan)
        with open(wrong, "w") as file:
            file.write("{}")
        for args in (("plan", wrong), ("simulate", GRAPH, wrong), ("plan", GRAPH, "--stick-to", wrong), ("advise", "--trace", wrong),
                     ("costs", "import", wrong), ("costs", "import-trace", wrong, "--out", self.path("out.json"))):
            self.run_ctl(*args, expect=REFUSED)
        for args in (("plan", GRAPH), ("simulate", GRAPH, plan), ("compare", GRAPH), ("explain", GRAPH, plan), ("advise", GRAPH),
                     ("trace", GRAPH, plan, "--out", self.path("out.svg"))):
            self.assertIn("--profile: cost profile wrong: ", self.run_ctl(*args, "--profile", wrong, expect=REFUSED).stderr)
            self.run_ctl(*args, "--profile", self.path("absent.json"), expect=USAGE)

    def test_what_is_nearly_right_gets_the_right_word(self):
        for args, said in ((("statsu",), 'there is no command "statsu"; did you mean status?'), (("fly",), 'there is no command "fly"'),
                           (("costs", "lst"), "did you mean list?"), (("plan", GRAPH, "--mdoe", "auto"), "did you mean --mode?"),
                           (("digest", GRAPH, "more"), 'unexpected argument "more"'),
                           (("status", "--server", "planner"), "expected HOST:PORT, unix:/path")):
            error = self.run_ctl(*args, expect=USAGE).stderr
            self.assertIn(said, error)
            self.assertIn("--help", error)

    def test_commands_that_ask_a_server_say_where_to_look_when_nobody_answers(self):
        for args in (("status",), ("plans",), ("jobs",), ("evict", "--all"), ("pin", "job"), ("disable", "--why", "x"), ("enable",),
                     ("costs", "list")):
            error = self.run_ctl(*args, "--server", f"unix:{self.path('socket')}", expect=UNAVAILABLE).stderr
            self.assertIn("BUCKETD_ADDRESS", error)

    def test_unknown_names_list_the_known_ones(self):
        for option, known in (("--mode", "transformer_block"), ("--numerics", "eager_order, exact, free"),
                              ("--backend", "gloo"), ("--profile", "h100_nvlink, h100_launch, slow_network, small_batch, cpu_loopback")):
            self.assertIn(known, self.run_ctl("plan", GRAPH, option, "no_such", expect=USAGE).stderr)

    def test_what_is_no_graph_is_refused(self):
        with gzip.open(GRAPH) as f:
            text = f.read()
        whole = gzip.compress(text)
        for name, data in (("empty", b""), ("noise", b"\x00\x01\x02" * 100), ("cut.gz", whole[:len(whole) // 2]),
                           ("cut.json", text[:len(text) // 2]), ("list.json", b"[]"), ("bare.json", b"{}")):
            with open(self.path(name), "wb") as f:
                f.write(data)
            for command in (("plan",), ("simulate",), ("digest",)):
                self.run_ctl(*command, self.path(name), expect=REFUSED)

    def test_a_plan_for_another_graph_is_refused(self):
        self.run_ctl("plan", GRAPH, "--plan-out", self.path("plan.json"))
        self.assertIn("made for graph", self.run_ctl("simulate", OTHER, self.path("plan.json"), expect=REFUSED).stderr)

    def test_an_illegal_plan_is_refused_with_its_violations(self):
        self.run_ctl("plan", GRAPH, "--plan-out", self.path("plan.json"))
        plan = referee.load(self.path("plan.json"))
        plan["order"].remove("wait:0")
        with open(self.path("broken.json"), "w") as f:
            json.dump(plan, f)
        self.assertIn("wait:0 is missing", self.run_ctl("simulate", GRAPH, self.path("broken.json"), expect=REFUSED).stderr)

    def test_what_cannot_be_written_is_unavailable(self):
        self.run_ctl("plan", GRAPH, "--plan-out", self.path("no/such/folder/plan.json"), expect=UNAVAILABLE)

    def test_plan_prints_what_simulate_and_show_print(self):
        planned = json.loads(self.run_ctl("plan", GRAPH, "--plan-out", self.path("plan.json"), "--json").stdout)
        again = json.loads(self.run_ctl("simulate", GRAPH, self.path("plan.json"), "--json").stdout)
        self.assertEqual({k: again[k] for k in planned["planned"]}, planned["planned"])
        self.assertEqual(planned["digest"], json.loads(self.run_ctl("digest", GRAPH, "--json").stdout)["digest"])
        table = self.run_ctl("plan", GRAPH).stdout
        shown = self.run_ctl("show", self.path("plan.json")).stdout
        for bucket in planned["buckets"]:
            self.assertIn(bucket["name"], table)
            self.assertIn(bucket["name"], shown)
        plan = referee.load(self.path("plan.json"))
        plan["buckets"][0].update(mode="packed", copies="comm")
        with open(self.path("plan.json"), "w") as f:
            json.dump(plan, f)
        self.assertIn("packed, copies on comm", self.run_ctl("show", self.path("plan.json")).stdout)

    def test_planning_twice_gives_the_same_bytes(self):
        files = []
        for k in range(3):
            self.run_ctl("plan", GRAPH, "--plan-out", self.path(f"{k}.json"), "--trace-out", self.path(f"{k}.trace"))
            with open(self.path(f"{k}.json"), "rb") as plan, open(self.path(f"{k}.trace"), "rb") as trace:
                files.append((plan.read(), trace.read()))
        self.assertEqual(files[0], files[1])
        self.assertEqual(files[0], files[2])

    def test_memory_limits_in_every_spelling(self):
        peak = json.loads(self.run_ctl("simulate", GRAPH, "--json").stdout)["peak_bytes"]
        for limit, most in (("1.05x", 1.05 * peak), ("+5%", 1.05 * peak), (str(2 * peak), 2 * peak), ("2GiB", 2**31), ("1.5GB", 1.5e9)):
            run = bucketctl("plan", GRAPH, "--memory-limit", limit, "--json")
            self.assertEqual(run.returncode, DONE, run.stderr)
            self.assertLessEqual(json.loads(run.stdout)["planned"]["peak_bytes"], most, limit)

    def test_traces_hold_both_runs_on_tracks_that_do_not_overlap(self):
        self.run_ctl("plan", GRAPH, "--plan-out", self.path("plan.json"))
        self.run_ctl("trace", GRAPH, self.path("plan.json"), "--out", self.path("trace.json"))
        with open(self.path("trace.json")) as f:
            trace = json.load(f)
        events = trace["traceEvents"]
        self.assertEqual({e["pid"] for e in events}, {1, 2})
        names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
        self.assertIn("compute stream", names)
        self.assertTrue(any(name.startswith("communication: ") for name in names), names)
        self.assertTrue(any(e["ph"] == "C" and e["name"] == "live memory" for e in events))
        total = json.loads(self.run_ctl("simulate", GRAPH, self.path("plan.json"), "--json").stdout)
        tracks = {}
        for e in events:
            if e["ph"] == "X":
                tracks.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
        self.assertAlmostEqual(max(end for (pid, _), spans in tracks.items() if pid == 1 for _, end in spans), total["total_us"], places=2)
        for spans in tracks.values():
            spans.sort()
            for (_, end), (begin, _) in zip(spans, spans[1:]):
                self.assertLessEqual(end, begin + 1e-5)
        stalled = sum(e["dur"] for e in events if e["ph"] == "X" and e["pid"] == 1 and e["cat"] == "stall")
        self.assertLessEqual(stalled, total["exposed_us"] + 1e-3)
        self.run_ctl("trace", GRAPH, "--out", self.path("alone.json"))
        with open(self.path("alone.json")) as f:
            self.assertEqual({e["pid"] for e in json.load(f)["traceEvents"]}, {1})

    def compare(self, *args):
        return json.loads(self.run_ctl("compare", GRAPH, *args, "--json").stdout)

    def test_compare_lays_every_mode_beside_program_order(self):
        compared = self.compare("--numerics", "free")
        modes = {row["mode"] for row in compared["plans"]}
        self.assertIn("transformer_block", modes)
        self.assertNotIn("manual", modes, "manual wants its entries")
        self.assertNotIn("none", modes, "program order has a line of its own")
        for row in compared["plans"]:
            planned = json.loads(self.run_ctl("plan", GRAPH, "--mode", row["mode"], "--numerics", "free", "--json").stdout)["planned"]
            self.assertEqual({k: row[k] for k in planned}, planned)
        fastest = min(compared["plans"], key=lambda row: row["total_us"])
        self.assertEqual([row["plan"] for row in compared["plans"] if row["fastest"]], [fastest["plan"]])
        table = self.run_ctl("compare", GRAPH, "--numerics", "free").stdout
        for mode in modes:
            self.assertIn(mode, table)

    def test_compare_takes_manual_where_its_entries_are_given(self):
        modes = {row["mode"] for row in self.compare("--buckets", "layers.[0-5]")["plans"]}
        self.assertIn("manual", modes)
        self.assertIn("transformer_block", modes)
        rows = self.compare("--sweep", "buckets=layers.0;layers.[0-5]")["plans"]
        self.assertEqual([(row["mode"], row["swept"]["buckets"]) for row in rows], [("manual", "layers.0"), ("manual", "layers.[0-5]")])

    def test_sweeps_multiply_and_change_the_plan(self):
        rows = self.compare("--mode", "transformer_block", "--sweep", "prefetch-backward=0,1", "--sweep", "defer_reduce_scatter=0,1")["plans"]
        self.assertEqual([(r["swept"]["prefetch_backward"], r["swept"]["defer_reduce_scatter"]) for r in rows],
                         [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")])
        self.assertLess(rows[3]["total_us"], rows[0]["total_us"], "prefetching and deferring hide communication")

    def test_sweeps_that_make_no_sense_are_usage_errors(self):
        for sweep, text in (("wings=1,2", "max_topo_span"), ("prefetch_backward", "option=value"), ("prefetch_backward=one", "whole number"),
                            ("prefetch_backward=" + ",".join(map(str, range(300))), "at most 200")):
            self.assertIn(text, self.run_ctl("compare", GRAPH, "--mode", "transformer_block", "--sweep", sweep, expect=USAGE).stderr)
        apart = ("--sweep", "max_topo_span=1,2", "--sweep", "buckets=layers.0")
        self.assertIn("no mode reads all of these", self.run_ctl("compare", GRAPH, *apart, expect=USAGE).stderr)

    def test_a_plan_that_is_refused_is_a_line_of_the_comparison(self):
        rows = self.compare("--mode", "transformer_block", "--sweep", "memory_limit_bytes=1000,0")["plans"]
        self.assertIn("limit is 1000", rows[0]["refused"])
        self.assertNotIn("refused", rows[1])

    def test_what_is_resident_counts_into_the_memory_limit(self):
        peak = json.loads(self.run_ctl("simulate", GRAPH, "--json").stdout)["peak_bytes"]
        self.run_ctl("plan", GRAPH, "--memory-limit", str(2 * peak))
        self.assertIn("limit", self.run_ctl("plan", GRAPH, "--memory-limit", str(2 * peak), "--resident-bytes", str(2 * peak), expect=REFUSED).stderr)

    def test_an_option_that_the_mode_does_not_read_is_named(self):
        asked = ("plan", GRAPH, "--effort", "0", "--prefetch-backward", "0")
        said = self.run_ctl(*asked).stderr
        self.assertIn("prefetch_backward=0 is for modes transformer_block, manual, greedy: mode auto only tries those", said)
        self.assertNotIn("effort=0 is for", said)
        self.assertIn("prefetch_backward=0 is for modes", self.run_ctl(*asked, "--pareto").stderr)
        codes = [d["code"] for d in json.loads(self.run_ctl(*asked, "--json").stdout)["diagnostics"]]
        self.assertEqual(codes.count("option-unread"), 1)
        self.assertNotIn("is for mode", self.run_ctl("plan", GRAPH, "--mode", "greedy", "--prefetch-backward", "0").stderr)

    def test_a_plan_says_what_stays_alone_and_why(self):
        for graph, numerics, why in ((graph_paths("llama3_debug_ddp8.bw")[0], "exact", "merging changes the order of sums"),
                                     (graph_paths("moe_debug_fsdp4_ep4.bw")[0], "eager_order", "all-to-all are never merged")):
            asked = ("plan", graph, "--effort", "0", "--numerics", numerics)
            planned = json.loads(self.run_ctl(*asked, "--json").stdout)
            alone, bucketed = sum(group["count"] for group in planned["alone"]), sum(b["members"] for b in planned["buckets"])
            self.assertEqual(alone + bucketed, sum(planned["program_order"]["collectives"].values()))
            self.assertTrue(any(why in group["why"] for group in planned["alone"]), planned["alone"])
            self.assertIn(why, self.run_ctl(*asked).stdout)
        named = json.loads(self.run_ctl("plan", GRAPH, "--mode", "manual", "--buckets", "layers.*", "--json").stdout)
        none = self.run_ctl("plan", GRAPH, "--mode", "manual", "--buckets", "no.such")
        self.assertRegex(none.stderr, "(?m)^uncovered-collective: .{50,400}; \\.\\.\\. \\(--json, or the plan's file, has all\\)$")
        self.assertEqual([group["why"] for group in named["alone"]], ["no entry of buckets holds it"])
        nothing = graph_paths("llama3_debug_ddp8.fw")[0]
        self.assertIn("no collectives: nothing to put into buckets", self.run_ctl("plan", nothing).stdout)
        self.assertEqual(json.loads(self.run_ctl("plan", nothing, "--json").stdout)["alone"], [])

    def test_all_reduces_of_gradients_merge_by_default_and_the_plan_says_what_becomes_of_sums(self):
        for name, ranks in (("llama3_debug_ddp8.bw", 8), ("llama3_debug_hsdp2x4_rsar.bw", 2)):
            graph = graph_paths(name)[0]
            before = json.loads(self.run_ctl("simulate", graph, "--json").stdout)
            planned = json.loads(self.run_ctl("plan", graph, "--effort", "0", "--json").stdout)
            self.assertLess(planned["planned"]["collectives"]["ar"], planned["program_order"]["collectives"]["ar"] / 3)
            self.assertLess(planned["planned"]["total_us"], before["total_us"])
            self.assertEqual("all-reduce-merged" in [d["code"] for d in planned["diagnostics"]], ranks > 2)
            apart = json.loads(self.run_ctl("plan", graph, "--effort", "0", "--bucket-all-reduce", "off", "--json").stdout)
            self.assertEqual(apart["planned"]["collectives"]["ar"], planned["program_order"]["collectives"]["ar"])

    def explain(self, *args):
        if not os.path.exists(self.path("plan.json")):
            self.run_ctl("plan", GRAPH, "--mode", "transformer_block", "--plan-out", self.path("plan.json"))
        return self.run_ctl("explain", GRAPH, self.path("plan.json"), *args).stdout

    def test_explain_says_what_every_bucket_is(self):
        text = self.explain()
        for bucket in referee.load(self.path("plan.json"))["buckets"]:
            self.assertIn(bucket["name"], text)
        self.assertIn("1 stays alone: ", text)

    def test_a_plan_says_what_it_gains_and_where_the_rest_of_the_gap_is(self):
        for graph in (GRAPH, OTHER):
            for mode in ("auto", "transformer_block"):
                answer = json.loads(self.run_ctl("plan", graph, "--mode", mode, "--effort", "1", "--json").stdout)
                total, bound, gap = answer["planned"]["total_us"], answer["sharp_bound_us"], answer["gap"]
                self.assertGreaterEqual(bound, answer["lower_bound_us"] - 0.01)
                self.assertAlmostEqual(gap["total_us"], total - bound, places=3)
                causes = {name: us for name, us in gap.items() if name != "total_us"}
                self.assertEqual(set(causes), {f"{c}_us" for c in ("head", "tail", "wire", "critical_path", "copies", "memory", "host")})
                self.assertAlmostEqual(sum(causes.values()), gap["total_us"], places=3)
                self.assertEqual(answer["gain"]["program_order_us"], answer["program_order"]["total_us"])
                if mode == "auto":
                    best = answer["gain"]["best_mode"]
                    self.assertGreaterEqual(answer["gain"]["best_mode_us"] + 0.001, total)
                    text = self.run_ctl("plan", graph, "--mode", mode, "--effort", "1").stdout
                    for words in ("than program order", "no plan is faster", best if best != "none" else "no other mode"):
                        self.assertIn(words, text)

    def test_explain_says_why_every_bucket_is_as_it_is(self):
        text = self.explain()
        for k, bucket in enumerate(referee.load(self.path("plan.json"))["buckets"]):
            story = next(part for part in text.split("\nbucket ") if part.startswith(f"{k} ("))
            self.assertIn(f"{len(bucket['members'])} {bucket['kind'].replace('_', '-')}s ", story)
            self.assertIn(f"{bucket['mode']}", story)
            for words in ("the step would take", "each by itself", "begins at"):
                self.assertIn(words, story)
            self.assertIn(story.split("\n")[0], self.explain(f"bucket:{k}"))

    def test_explain_says_the_same_as_json(self):
        text = self.explain()
        buckets = referee.load(self.path("plan.json"))["buckets"]
        said = json.loads(self.explain("--json"))
        self.assertEqual(said["explanation"], text)
        self.assertEqual([bucket["members"] for bucket in said["buckets"]], [bucket["members"] for bucket in buckets])
        for bucket in said["buckets"]:
            for clause in ("holds", "form", "begins", "larger"):
                self.assertIn(bucket[clause], text)
        for group in said["alone"]:
            self.assertIn(group["why"], text)

    def test_explain_says_whose_costs_its_figures_are(self):
        self.explain()
        run = self.run_ctl("explain", GRAPH, self.path("plan.json"), "--profile", "slow_network")
        self.assertIn("cost profile slow_network@1 over the file's costs\n", run.stdout)
        self.assertIn("figures are by slow_network@1 over the file's costs; the plan was made by h100_nvlink@1 over the file's costs", run.stderr)
        self.assertEqual(self.run_ctl("explain", GRAPH, self.path("plan.json")).stderr, "")

    def test_whose_bits_gradients_have_is_said_by_plan_and_explain_alike(self):
        out = self.path("bits.json")
        figures = json.loads(self.run_ctl("plan", GRAPH, "--plan-out", out, "--json").stdout)
        self.assertEqual(figures["bits"], "neither")  # no order of parameters was given, and NCCL adds by position
        self.assertIn("neither of the unplanned graph nor of eager training: bucket ", figures["bits_text"])
        for said in (self.run_ctl("plan", GRAPH), self.run_ctl("explain", GRAPH, out), self.run_ctl("show", out)):
            self.assertIn(figures["bits_text"] + "\n", said.stdout)
        exact = json.loads(self.run_ctl("plan", GRAPH, "--numerics", "exact", "--json").stdout)
        self.assertEqual(exact["bits"], "unplanned")

    def test_explain_knows_how_many_buckets_there_are(self):
        self.explain()
        count = len(referee.load(self.path("plan.json"))["buckets"])
        run = self.run_ctl("explain", GRAPH, self.path("plan.json"), f"bucket:{count}", expect=USAGE)
        self.assertIn(f"buckets 0 to {count - 1}\n", run.stderr)

    def test_explain_names_what_keeps_two_apart(self):
        self.explain()
        buckets = referee.load(self.path("plan.json"))["buckets"]
        first = {kind: [k for k, b in enumerate(buckets) if b["kind"] == kind] for kind in ("all_gather", "reduce_scatter")}
        gather, other_gather = (f"bucket:{k}" for k in first["all_gather"][:2])
        self.assertIn("they differ in kind", self.explain(gather, f"bucket:{first['reduce_scatter'][0]}"))
        could = self.explain(gather, other_gather)
        self.assertIn("could share a bucket", could)
        self.assertIn("the step would take", could)
        self.assertIn("share bucket", self.explain(gather, str(buckets[first["all_gather"][0]]["members"][1])))

    def test_explain_shows_the_path_between_dependent_collectives(self):
        ddp = graph_paths("llama3_debug_hsdp2x4_rsar.bw")[0]
        self.run_ctl("plan", ddp, "--plan-out", self.path("hsdp.json"))
        with gzip.open(ddp) as f:
            nodes = json.load(f)["nodes"]
        by_parameter = {}
        for node in nodes:
            if node.get("coll", {}).get("param") and node["coll"]["kind"] in ("rs", "ar"):
                by_parameter.setdefault(node["coll"]["param"], {})[node["coll"]["kind"]] = node["name"]
        pair = next(p for p in by_parameter.values() if len(p) == 2)
        text = self.run_ctl("explain", ddp, self.path("hsdp.json"), pair["rs"], pair["ar"]).stdout
        self.assertIn("one depends on the other", text)
        self.assertIn(f"({pair['rs']}) ->", text)

    def test_explain_asks_which_of_a_parameters_collectives_is_meant(self):
        self.explain()
        run = self.run_ctl("explain", GRAPH, self.path("plan.json"), "norm.weight", expect=USAGE)
        self.assertIn("norm.weight has 2 collectives", run.stderr)
        self.assertIn("bucket", self.explain("%" + run.stderr.split("%")[1].split()[0]))
        self.assertIn("called so", self.run_ctl("explain", GRAPH, self.path("plan.json"), "wings", expect=USAGE).stderr)

    def test_key_names_the_fields_and_the_node_that_differ(self):
        self.assertIn("one plan serves both", self.run_ctl("key", GRAPH, GRAPH).stdout)
        differ = json.loads(self.run_ctl("key", GRAPH, "--b", "max-topo-span=7", "--b-profile", "slow_network", "--json").stdout)
        self.assertEqual([f["field"] for f in differ["fields"]], ["max_topo_span", "cost_profile", "cost_profile.fingerprint"])
        self.assertIsNone(differ["first_difference"])
        with gzip.open(GRAPH) as f:
            graph = json.load(f)
        changed = next(n for n in graph["nodes"] if n["op"] == "aten.mm.default")
        changed["op"] = "aten.my_mm.default"
        with open(self.path("changed.json"), "w") as f:
            json.dump(graph, f)
        differ = json.loads(self.run_ctl("key", GRAPH, self.path("changed.json"), "--json").stdout)
        self.assertEqual([f["field"] for f in differ["fields"]], ["graph"])
        self.assertEqual((differ["first_difference"]["field"], differ["first_difference"]["b"]), ("op", "aten.my_mm.default"))
        self.assertIn(changed["name"], self.run_ctl("key", GRAPH, self.path("changed.json")).stdout)

    def test_diff_finds_buckets_orders_and_options_that_differ(self):
        self.explain()
        self.assertTrue(json.loads(self.run_ctl("diff", self.path("plan.json"), self.path("plan.json"), "--json").stdout)["equal"])
        self.run_ctl("plan", GRAPH, "--mode", "transformer_block", "--prefetch-backward", "0", "--plan-out", self.path("order.json"))
        order = json.loads(self.run_ctl("diff", self.path("plan.json"), self.path("order.json"), "--json").stdout)
        self.assertEqual((order["fields"], order["buckets"]), ([], []))
        self.assertIsNotNone(order["first_step"])
        self.run_ctl("plan", GRAPH, "--mode", "manual", "--buckets", "layers.[0-4],layers.5+norm+output", "--plan-out", self.path("other.json"))
        other = json.loads(self.run_ctl("diff", self.path("plan.json"), self.path("other.json"), "--json").stdout)
        self.assertEqual([f["field"] for f in other["fields"]], ["mode"])
        self.assertEqual({b["difference"] for b in other["buckets"]}, {"only in A", "only in B"})
        both = ("diff", self.path("plan.json"), self.path("other.json"))
        self.assertIn("reduce_scatter", self.run_ctl(*both, "--graph", GRAPH).stdout)
        for shown in ((), ("--json",)):
            self.assertIn("made for graph", self.run_ctl(*both, "--graph", OTHER, *shown, expect=REFUSED).stderr)
            piped = bucketctl("diff", "/dev/stdin", both[2], "--graph", GRAPH, *shown, piped=json.dumps(referee.load(both[1])))
            self.assertEqual(piped.stdout, self.run_ctl(*both, "--graph", GRAPH, *shown).stdout, "a pipe is read once")


if __name__ == "__main__":
    unittest.main()
