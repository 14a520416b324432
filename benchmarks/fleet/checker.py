"""What torture's checker does not look at, as one engine has no need of it: identities over all output partitions,
records that were sent home, and whole lists of what owners remember."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.torture.checker import Findings, ask_caught_up, audit, count, expected
from benchmarks.torture.log import Log, Sent
from benchmarks.torture.model import Mind, same_text
from benchmarks.torture.reader import Output, Reader, all_of
from benchmarks.torture.topics import INPUTS

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
    """No record that landed elsewhere is in its home partition twice."""
    once(all_of(log.topics, INPUTS[:2]), findings)


def once(records: Iterable[Output], findings: Findings) -> None:
    """No record came of another one twice, whatever partitions they are in."""
    found = Counter((record.header(SOURCE), record.header(NUMBER)) for record in records if record.header(SOURCE))
    findings.twice.extend(f"{source}, number {number}: {n} times" for (source, number), n in found.items() if n > 1)


def list_all(log: Log, reader: Reader, findings: Findings) -> None:
    """Asks every owner for all memories, page by page, and compares with the model."""
    pages: dict[str, list[dict[str, Any]]] = {owner: [] for owner, _ in log.minds}
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
    for owner, mind in log.minds:
        findings.wrong.extend(f"{owner}: {found}" for found in differences(mind, pages[owner]))
        findings.audited += 1


def differences(mind: Mind, listed: Iterable[dict[str, Any]]) -> Iterator[str]:
    """What a list of all memories has otherwise than the model."""
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
