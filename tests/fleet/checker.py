"""Comparison of inputs and outputs: every record has its outputs once, and the memories equal those of the model."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fleet.engine import INPUTS, OUTPUTS
from tests.fleet.records import Log, Memory, Mind, Output, Reader, Sent, all_of, same_text
from tests.process import GIVE_UP_S

SHOWN = 300
CATCHING_UP = "catching_up"
EXCUSES = {"stale_read", CATCHING_UP}


@dataclass
class Findings:
    outputs: int = 0
    audited: int = 0
    waited: int = 0  # answers that waited for a memory, and have it
    excused: int = 0  # answers without it that say why: it could not be waited for, or they know half
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    unasked: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def clean(self) -> bool:
        return not (self.lost or self.twice or self.unasked or self.wrong)

    def __str__(self) -> str:
        lists = {name: getattr(self, name) for name in ("lost", "twice", "unasked", "wrong")}
        return "; ".join(f"{name} {len(found)}: {found[:3]}" for name, found in lists.items() if found) or "clean"


def count(records: Iterable[Sent], outputs: Iterable[Output], findings: Findings) -> Findings:
    """Every record ended as it may, once, and there is nothing else."""
    by_record: dict[tuple[str, str], list[Output]] = defaultdict(list)
    for output in outputs:
        by_record["query-id" if output.kind == "response" else "position", output.answers].append(output)
        findings.outputs += 1
    for sent in records:
        found = by_record.pop(("position", sent.position), [])
        if sent.kind == "query":
            found = found + by_record.pop(("query-id", sent.query_id), [])
        _settle(sent, found, findings)
    for (_, name), found in by_record.items():
        findings.unasked.append(f"{found[0].kind} {name}: {(found[0].value or b'')[:SHOWN]!r}")
    return findings


def _settle(sent: Sent, found: list[Output], findings: Findings) -> None:
    kinds = sorted(output.kind for output in found)
    if len(set(kinds)) < len(kinds):
        findings.twice.append(f"{sent.position} {sent.event}: {kinds}"[:SHOWN])
    elif frozenset(kinds) not in sent.wants:
        wanted = [sorted(want) for want in sent.wants]
        which = findings.lost if any(want > set(kinds) for want in sent.wants) else findings.wrong
        said = [output.header("error.detail")[:100] for output in found if output.kind == "dead-letter"]
        which.append(f"{sent.position} {str(sent.event or sent.value)[:120]}: {kinds} {said}, not {wanted}"[:SHOWN])


def expected(log: Log, outputs: Iterable[Output], findings: Findings) -> None:
    """Answers to questions that only one memory may come back for, and that waited until it was there."""
    asked = {sent.query_id: sent for sent in log.sent if sent.expects}
    for output in outputs:
        if output.kind != "response" or (sent := asked.get(output.answers)) is None:
            continue
        body = output.body
        ids = [memory["id"] for memory in body.get("memories", [])]
        since_forgotten = not ids and sent.expects in log.minds[sent.owner].forgotten
        if ids == [sent.expects] or since_forgotten:
            findings.waited += 1
        elif body["status"] != "ok" and _warned(body) & EXCUSES:
            findings.excused += 1
        else:
            findings.wrong.append(f"{sent.event}: {ids}, {str(body)[:SHOWN]}")


def settled(log: Log, reader: Reader) -> bool:
    return not open_records(log, reader)


def open_records(log: Log, reader: Reader) -> list[Sent]:
    for sent in (sent for sent in list(log.sent) if not sent.done):
        names = {kind: sent.query_id if kind == "response" else sent.position for kind in OUTPUTS}
        kinds = {kind for kind, name in names.items() if (kind, name) in reader.seen}
        sent.done = any(want <= kinds for want in sent.wants)
    return [sent for sent in list(log.sent) if not sent.done]


def ask_caught_up(log: Log, reader: Reader, asked: Iterable[Sent]) -> dict[str, dict[str, Any]]:
    """Return the answers to questions, by the ids of these. One whose answer is of a partition that catches up is asked
    again. Questions without an answer in time are left out."""
    answers: dict[str, dict[str, Any]] = {}
    latest = {sent.query_id: sent for sent in asked}
    deadline_s = time.monotonic() + GIVE_UP_S
    while latest:
        log.flush()
        if not reader.until(lambda: settled(log, reader)) or time.monotonic() > deadline_s:
            return answers
        found = {output.answers: output.body for output in reader.outputs if output.kind == "response"}
        bodies = {first: found[sent.query_id] for first, sent in latest.items()}
        late = {first for first, body in bodies.items() if CATCHING_UP in _warned(body)}
        answers |= {first: body for first, body in bodies.items() if first not in late}
        latest = {first: _ask_again(log, latest[first]) for first in late}
    return answers


def _warned(body: dict[str, Any]) -> set[str]:
    return {warning["code"] for warning in body.get("warnings", [])}


def _ask_again(log: Log, sent: Sent) -> Sent:
    fields = {name: value for name, value in (sent.event or {}).items() if name not in ("type", "id")}
    return log.ask(sent.owner, (sent.event or {})["type"], **fields)


def audit(log: Log, reader: Reader, findings: Findings, most: int = 400) -> Findings:
    """Ask for what the model knows, memory by memory, and compares. Everything told has to be applied before."""
    asked: list[tuple[Sent, Memory | None]] = []
    stats: list[tuple[Sent, Mind]] = []
    for owner, mind in log.minds.items():
        stats.append((log.ask(owner, "user.stats"), mind))
        for memory_id, memory in list(mind.memories.items())[-most:]:
            asked.append((log.ask(owner, "memory.history", memory_id=memory_id), memory))
        for memory_id in sorted(mind.forgotten)[-most:]:
            asked.append((log.ask(owner, "memory.get", memory_id=memory_id), None))
    every = [sent for sent, _ in (*asked, *stats)]
    answers = ask_caught_up(log, reader, every)
    if len(answers) < len(every):
        findings.wrong.append("the audit's questions were not all answered")
    for sent, told in ((sent, told) for sent, told in asked if sent.query_id in answers):
        _compare(sent, answers[sent.query_id], told, findings)
    for sent, mind in ((sent, mind) for sent, mind in stats if sent.query_id in answers):
        memories = answers[sent.query_id].get("stats", {}).get("memories")
        if memories != len(mind.memories):
            findings.wrong.append(f"user.stats of {sent.owner}: {memories} memories, not {len(mind.memories)}")
        findings.audited += 1
    return findings


def _compare(sent: Sent, answer: dict[str, Any], memory: Memory | None, findings: Findings) -> None:
    findings.audited += 1
    code = answer.get("error", {}).get("code") if answer["status"] == "error" else None
    if memory is None:
        if code != "not_found":
            findings.wrong.append(f"{sent.event}: a forgotten memory is not not_found: {str(answer)[:SHOWN]}")
        return
    if code == "too_large" and sum(map(len, memory.versions)) > 10_000:
        return
    told: list[dict[str, Any]] = answer.get("versions", [])
    same = len(told) == len(memory.versions)
    ordered = told if same and told and same_text(memory.versions[0], told[0]) else told[::-1]
    if not same or not all(same_text(text, item) for text, item in zip(memory.versions, ordered, strict=True)):
        shown = [str(item.get("content"))[:40] for item in told] or str(answer)[:SHOWN]
        findings.wrong.append(f"{sent.event}: {shown}, not {[text[:40] for text in memory.versions]}")


def check(log: Log, reader: Reader | None = None) -> Findings:
    """The whole verdict on what stands in the topics; with a reader, after an audit by questions."""
    findings = Findings()
    if reader is not None:
        audit(log, reader, findings)
    outputs = all_of(log.topics)
    expected(log, outputs, findings)
    return count(list(log.sent), outputs, findings)


SOURCE, NUMBER = "recallflow-source", "recallflow-output"  # what says of a record which record it came of
PAGE = 200
HISTORIES = 10  # of each owner


def judge(log: Log, reader: Reader) -> Findings:
    """The whole verdict on what stands in the topics and what the engines say of it, once all is applied."""
    findings = Findings()
    audit(log, reader, findings, HISTORIES)
    list_all(log, reader, findings)
    outputs = all_of(log.topics)
    expected(log, outputs, findings)
    once(outputs, findings)
    sent_home_once(log, findings)
    return count(list(log.sent), outputs, findings)


def sent_home_once(log: Log, findings: Findings) -> None:
    once(all_of(log.topics, INPUTS[:2]), findings)


def once(records: Iterable[Output], findings: Findings) -> None:
    found = Counter((record.header(SOURCE), record.header(NUMBER)) for record in records if record.header(SOURCE))
    findings.twice.extend(f"{source}, number {number}: {n} times" for (source, number), n in found.items() if n > 1)


def list_all(log: Log, reader: Reader, findings: Findings) -> None:
    """Ask every owner for all memories, page by page, and compares with the model."""
    pages: dict[str, list[dict[str, Any]]] = {owner: [] for owner in log.minds}
    open_: dict[str, str | None] = dict.fromkeys(pages)
    while open_:
        asked = {owner: _page(log, owner, after) for owner, after in open_.items()}
        answers = ask_caught_up(log, reader, asked.values())
        if len(answers) < len(asked):
            findings.lost.append("the last questions were not all answered")
            return
        open_ = {}
        for owner, sent in asked.items():
            page = answers[sent.query_id].get("memory_page") or {"memories": [], "after": None}
            pages[owner] += page["memories"]
            if page["after"] is not None:
                open_[owner] = page["after"]
    for owner, mind in log.minds.items():
        findings.wrong.extend(f"{owner}: {found}" for found in differences(mind, pages[owner]))
        findings.audited += 1


def differences(mind: Mind, listed: Iterable[dict[str, Any]]) -> Iterator[str]:
    left = dict(mind.memories)
    for item in listed:
        memory = left.pop(item["id"], None)
        if memory is None:
            yield f"{item['id']} is listed, and was forgotten, listed before, or never told"
        elif not same_text(memory.versions[-1], item):
            yield f"{item['id']} is {item['content'][:40]!r}, not {memory.versions[-1][:40]!r}"
    yield from (f"{memory_id} is not listed" for memory_id in left)


def _page(log: Log, owner: str, after: str | None) -> Sent:
    fields: dict[str, Any] = {"limit": PAGE} if after is None else {"limit": PAGE, "after": after}
    return log.ask(owner, "memories.list", **fields)
