"""Every output beside the one that should have come out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from benchmarks.crash.outputs import Found, Key
from benchmarks.crash.report import Report
from recallflow.flows.topics import Topics
from recallflow.operators.decode import decode
from recallflow.operators.events import Ask
from recallflow.records import Position, Record
from recallflow.responses import Warn, status_of

MAY_DIFFER = {"processing_time_ms", "sla_met", "applied", "warnings", "usage"}
TIMING = ("stale_read", "catching_up")  # warnings of when an answer was given, not of what was asked
LAST_PLACE = 1.5e-6  # factors and scores are rounded to six places


class Judge:
    """Compares what came out with the reference."""

    def __init__(self, topics: Topics, report: Report) -> None:
        self._topics = topics
        self._report = report

    def compare(self, expected: Mapping[Key, Found], seen: Mapping[Key, Sequence[Found]]) -> None:
        report = self._report
        report.outputs = len(expected)
        report.lost = [_name(key) for key in expected.keys() - seen.keys()]
        report.unexpected = [_name(key) for key in seen.keys() - expected.keys()]
        report.duplicate = [_name(key) for key, found in seen.items() if len(found) > 1]
        for key in expected.keys() & seen.keys():
            if key.topic == self._topics.responses:
                self._compare_answer(key, expected[key], seen[key][0])
            elif expected[key] != seen[key][0]:
                report.wrong.append(f"{_name(key)}: {seen[key][0].value[:300]!r}, not {expected[key].value[:300]!r}")

    def check_wait(self, record: Record, answer: Mapping[str, Any]) -> None:
        """An answer that waited for a position either has it, or says that it does not."""
        asked = decode(record)
        wanted = getattr(asked.query, "wait_for", None) if isinstance(asked, Ask) else None
        if wanted is None:
            return
        target = Position.parse(wanted)
        if any(warning["code"] == "stale_read" for warning in answer.get("warnings", [])):
            self._report.stale += 1
        elif applied_up_to(answer, target.source) >= target.offset:
            self._report.waited += 1
        else:
            self._report.wrong.append(f"{record.position}: answered before {target} was applied, without a warning")

    def _compare_answer(self, key: Key, expected: Found, seen: Found) -> None:
        self._report.responses += 1
        answer = orjson.loads(seen.value)
        if answer["status"] == "error" and key.number == 0 and "applied" not in answer:
            self._report.unplaced += 1
            return
        if answer.get("error", {}).get("code") == "catching_up":
            self._report.stale += 1
            return
        found = list(differences(_comparable(answer), _comparable(orjson.loads(expected.value))))
        if (seen.part, seen.key, seen.headers) != (expected.part, expected.key, expected.headers):
            found.append(f"{seen.part} {seen.key!r} {seen.headers}")
        if found:
            self._report.wrong.append(f"{_name(key)}: {'; '.join(found)}"[:1_000])
        else:
            self._report.compared += 1


def applied_up_to(answer: Mapping[str, Any], source: str) -> int:
    """The last offset of a source that an answer says was applied."""
    applied = dict(position.rsplit(":", 1) for position in answer.get("applied") or ())
    return int(applied.get(source, -1))


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ. Numbers may by one of their last place: an index that was loaded adds up in another
    order than one that has grown."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for name in ours:
            yield from differences(ours[name], theirs[name], f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for place, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(*pair, f"{path}[{place}]")
    elif isinstance(ours, float) and isinstance(theirs, float):
        if abs(ours - theirs) > LAST_PLACE:
            yield f"{path}: {ours}, not {theirs}"
    elif ours != theirs:
        yield f"{path}: {str(ours)[:200]}, not {str(theirs)[:200]}"


def _comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what may differ: how long it took and what caches spared it, what else was applied, the
    warnings that it could not wait or that more was to be read, with the status that follows from them alone, and how
    often a memory was returned: a query that is answered again after a crash may see the effects of those that came
    after it."""
    kept = {k: v for k, v in answer.items() if k not in MAY_DIFFER}
    warnings = answer.get("warnings", [])
    kept["warnings"] = [warning for warning in warnings if warning["code"] not in TIMING]
    if len(kept["warnings"]) < len(warnings) and kept["status"] == "degraded":
        kept["status"] = status_of(Warn(**warning) for warning in kept["warnings"])
    if "routing_info" in kept:
        kept["routing_info"] = {k: v for k, v in kept["routing_info"].items() if k not in ("stages_ms", "cache_hits")}
    return kept


def _name(key: Key) -> str:
    return f"{key.topic} {key.source} #{key.number}"
