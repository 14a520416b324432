"""Checkpoints: a member whose disk is lost restores its partitions and reads only newer records."""

import base64
import re
from contextlib import closing
from pathlib import Path

import orjson

from benchmarks.broker import Cluster
from tests.fleet import checker
from tests.fleet.checker import settled
from tests.fleet.engine import SHORT_SESSION, Topics, command
from tests.fleet.members import Fleet
from tests.fleet.records import Log, Reader
from tests.readable import contains

PARTITIONS = 2
OWNERS = 6
TOLD, SINCE = 40, 12
WHOSE, WHAT = "acme-corporation/ann-of-acme", "The violin under the stairs"
SAID = ("acme-corporation", "ann-of-acme", "violin under the stairs")  # some of which stands in files as it is
OFTEN, SELDOM = ("--checkpoint-minutes", "0.01"), ("--checkpoint-minutes", "1000")
FETCHED = re.compile(
    r"partition (\d+) was restored from a checkpoint of \d+ bytes in [\d.]+ s, applied up to offset (\d+)"
)
OURS = re.compile(r"partition (\d+) is assigned[,;] .*:\d+ resumes at offset (\d+)")


def test_a_lost_disk_is_restored_from_encrypted_checkpoints(broker: Cluster, tmp_path: Path) -> None:
    topics, store = Topics(broker), tmp_path / "checkpoints"
    topics.make(PARTITIONS)
    log = Log(topics)
    always = ("--epoch-ms", "100", "--checkpoint-to", f"file:{store}", "--instance-id", "one", *SHORT_SESSION)
    key = ("--master-key-file", str(key_file(tmp_path)))
    with Fleet(topics, tmp_path, 1, *always, *key) as fleet, closing(Reader(topics)) as reader:
        (member,) = fleet.members

        def talk(count: int) -> dict[int, int]:
            log.talk(count, owners=OWNERS)
            assert reader.until(lambda: settled(log, reader)), member.said()
            return {part: end for part, (_, end) in topics.bounds("memory").items()}

        member.up(*OFTEN)
        log.tell(WHOSE, content=WHAT)
        ends = talk(TOLD)
        member.until(lambda: kept(store) == ends, "kept")
        member.kill()
        member.up(*SELDOM)
        talk(SINCE)
        member.kill()
        fleet.lose_disk(0)
        member.up(*SELDOM)
        log.flush()
        assert kept(store) == ends  # nothing of what came since
        assert {int(part): int(offset) + 1 for part, offset in FETCHED.findall(member.said())} == ends
        assert {int(part): int(offset) for part, offset in OURS.findall(member.said())} == ends
        talk(SINCE)
        findings = checker.judge(log, reader)
        assert findings.clean(), findings
        assert member.metrics()["recallflow_memories"] == 1 + TOLD + 2 * SINCE
        assert member.stop().code == 0, member.said()
    assert readable(store) == set()


def key_file(folder: Path) -> Path:
    path = folder / "master.key"
    path.write_text(base64.b64encode(bytes(range(32))).decode())
    return path


def kept(store: Path) -> dict[int, int]:
    listed = command("checkpoints", "list", f"file:{store}", "--json").out.splitlines()
    found = [(one["partition"], one["offset"] + 1) for one in map(orjson.loads, listed)]
    return {part: max(offset for number, offset in found if number == part) for part, _ in found}


def readable(store: Path) -> set[str]:
    content = b"\0".join(path.read_bytes() for path in store.rglob("*") if path.parent.name == "objects")
    return {said for said in SAID if contains(content, said)}
