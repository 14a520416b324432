"""What a replay has sent already is known by cluster and topic, not by the file alone."""

import os
from pathlib import Path

import orjson

import recallflow
from benchmarks.torture.engine import command
from benchmarks.torture.topics import Topics

COUNT = 30


def total(topics: Topics) -> int:
    return sum(end - first for first, end in topics.bounds("memory").values())


def test_each_topic_gets_the_whole_log(bare: Topics, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    event = {"type": "message", "tenant_id": "acme", "user_id": "ann"}
    log.write_bytes(
        b"".join(orjson.dumps(event | {"id": f"m{n}", "content": f"walnut {n}"}) + b"\n" for n in range(COUNT))
    )
    first, second = bare, Topics(bare.cluster)
    for topics in (first, second):
        topics.make_one("memory", 2)
        where = ("--bootstrap-servers", topics.cluster.bootstrap_servers, "--memory-topic", topics.of("memory"))
        for _ in range(2):
            ended = command("replay", log, *where)
            assert ended.code == 0, ended
            assert total(topics) == COUNT
    second.remake("memory", 2)
    ended = command("replay", log, *where)
    assert ended.code == 0, ended
    assert total(second) == COUNT


def test_nothing_is_written_into_the_package(bare: Topics) -> None:
    package = Path(recallflow.__file__).parent
    before = {path: path.stat().st_mtime_ns for path in package.rglob("*") if "__pycache__" not in path.parts}
    bare.make_one("memory", 2)
    where = ("--bootstrap-servers", bare.cluster.bootstrap_servers, "--memory-topic", bare.of("memory"))
    ended = command("replay", package / "samples" / "conversations.jsonl", *where)
    assert ended.code == 0, ended
    assert total(bare) > 0
    after = {path: path.stat().st_mtime_ns for path in package.rglob("*") if "__pycache__" not in path.parts}
    assert {os.fspath(path) for path in after} == {os.fspath(path) for path in before}
    again = command("replay", package / "samples" / "conversations.jsonl", *where)
    assert again.code == 0, again
