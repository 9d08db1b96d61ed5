"""Captured-graph files: tests/data/SCHEMA.md with the additions of proto/GRAPH.md §1."""

import gzip
import json

import pytest

from bucketd.canonical import digest
from bucketd.files import collective_cost, load_graph, save_graph
from bucketd.graph import CollectiveKind, GraphError, Group
from bucketd.normalize import normalize


def test_a_saved_graph_comes_back_as_it_was(vectors, tmp_path):
    for path, _ in vectors:
        raw = load_graph(path)
        save_graph(raw, tmp_path / "again.json.gz")
        assert load_graph(tmp_path / "again.json.gz") == raw
        assert (tmp_path / "again.json.gz").read_bytes() == path.read_bytes(), f"{path.name} is not what would be written"


def test_plain_json_is_read_too(vectors, tmp_path):
    path, expected = vectors[0]
    save_graph(load_graph(path), tmp_path / "plain.json")
    json.loads((tmp_path / "plain.json").read_text())
    assert digest(normalize(load_graph(tmp_path / "plain.json")).graph).hex() == expected


def test_reads_files_of_the_bare_schema(data):
    raw = load_graph(data / "graphs" / "llama3_debug_hsdp2x4_rsar.bw.json.gz")
    assert [(g.mesh_dim, g.lane, g.size) for g in raw.groups] == [("dp_shard", 0, 4), ("dp_replicate", 0, 2)]
    file = json.loads(gzip.decompress((data / "graphs" / "llama3_debug_hsdp2x4_rsar.bw.json.gz").read_bytes()))
    assert len(raw.nodes) == len(file["nodes"]) and raw.nodes[-1].slots
    assert [n.index for n in raw.nodes if n.op == "getitem"] == [
        n["args"][1] for n in file["nodes"] if n["op"] == "getitem"
    ]


def test_costs_are_those_of_the_schema(data):
    """est_us, alpha and bandwidth that save_graph writes, against those that the shared graphs state."""
    checked = 0
    for name in ("llama3_debug_fsdp8.bw", "llama3_debug_hsdp2x4_rsar.bw", "llama3_70b_fsdp64.fw"):
        path = data / "graphs" / f"{name}.json.gz"
        file = json.loads(gzip.decompress(path.read_bytes()))
        raw = load_graph(path)
        for node, record in zip(raw.nodes, file["nodes"]):
            if node.collective is None:
                continue
            alpha, busbw = collective_cost(node.collective.kind, raw.groups[node.collective.group], raw.gpus_per_node)
            assert (alpha, busbw) == pytest.approx((record["coll"]["alpha_us"], record["coll"]["busbw"]))
            checked += 1
    assert checked > 100
    assert collective_cost(CollectiveKind.ALL_GATHER, Group("dp", 0, 8), 8) == (24.0, 360e9)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda file: file["nodes"][20]["inputs"].append(400000), "node %20 .*node 400000"),
        (lambda file: file["nodes"][20].pop("op"), "node %20 .*'op'"),
        (lambda file: file["nodes"][3].update(outputs=[{"shape": [2], "dtype": "float3"}]), "node %3 .*float3"),
        (lambda file: file.pop("nodes"), "'nodes'"),
        (lambda file: file["nodes"].insert(5, 7), "node %5"),
    ],
)
def test_a_damaged_file_names_the_place(vectors, tmp_path, damage, message):
    file = json.loads(gzip.decompress(vectors[0][0].read_bytes()))
    damage(file)
    (tmp_path / "bad.json").write_text(json.dumps(file))
    with pytest.raises(GraphError, match=message):
        load_graph(tmp_path / "bad.json")


@pytest.mark.parametrize("content", [b"", b"\x1f\x8bnot gzip", b"{", b"[]", b"\x1f\x8b" + b"\0" * 40, b"[" * 100000,
                                     gzip.compress(b"{}", mtime=0)[:10] + b"\xff" * 20])
def test_what_is_no_graph_is_refused(tmp_path, content):
    (tmp_path / "bad.json.gz").write_bytes(content)
    with pytest.raises(GraphError, match="is not a captured graph"):
        load_graph(tmp_path / "bad.json.gz")


def test_a_truncated_file_is_refused(vectors, tmp_path):
    whole = vectors[0][0].read_bytes()
    (tmp_path / "short.json.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(GraphError):
        load_graph(tmp_path / "short.json.gz")
