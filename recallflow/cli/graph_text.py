"""What a person reads of the graph: its state, a trace, facts."""

from collections.abc import Iterable, Mapping
from typing import Any

from recallflow.cli.output import paragraph

INDENT = " " * 4


def status(response: Mapping[str, Any]) -> list[str]:
    """Rollout and gate of the tenant, and the user's graph in numbers."""
    report = response["graph_status"]
    rollout, gate = report["rollout"], report["gate"]
    mode = rollout["mode"] if rollout["enabled"] else f"{rollout['mode']}, but the graph is off (graph_enabled)"
    lines = [f"rollout  {mode}{_decided(rollout)}", f"gate     {_open(gate['blocked'])}{_decided(gate)}"]
    lines += [f"{INDENT}{name:<15} {_figure(value)}" for name, value in gate["windows"].items()]
    lines += [f"{INDENT}{kind}: {_of_type(of)}" for kind, of in gate["edge_types"].items()]
    at_least = "" if report["complete"] else "at least "
    lines += [f"{name:<8} {at_least}{_counts(report[name])}" for name in ("nodes", "edges")]
    return lines + [f"failed   {one['at']} {one['query_id']}: {one['error']}" for one in report["failures"]]


def trace(response: Mapping[str, Any]) -> list[str]:
    """Where paths begin, every edge looked at, and what would be added."""
    found = response["graph_trace"]
    lines = [f"from     {seed['id']} ({seed['score']:g})" for seed in found["seeds"]]
    lines += [f"{INDENT}{_step(step)}" for step in found["steps"]]
    if found["left_out"]:
        lines.append(f"{INDENT}… and {found['left_out']:,} steps more")
    lines += [
        f"adds     {one['id']} ({one['score']:g}): {one['why']['edge_type']} from {one['why']['from']}"
        for one in found["expanded"]
    ] or ["adds     nothing"]
    return lines + ([f"not in answers: {found['fallback']}"] if found["fallback"] else [])


def facts(response: Mapping[str, Any]) -> list[str]:
    """Relations, each with the sentences that state it."""
    found = response["graph_facts"]
    lines = [line for fact in found["facts"] for line in _fact(fact)] or ["nothing of that is known"]
    return lines if found["complete"] else [*lines, "not all was looked at: name entities or types"]


def _fact(fact: Mapping[str, Any]) -> Iterable[str]:
    marks = f" ({', '.join(fact['marks'])})" if fact["marks"] else ""
    yield f"{fact['source_name']} {fact['type']} {fact['target_name']}{marks}"
    for one in fact["evidence"]:
        yield paragraph(f"“{one['quote']}” {one['id']}", INDENT)


def _step(step: Mapping[str, Any]) -> str:
    return f"{step['hop']}  {step['source']} –{step['type']}– {step['target']}: {step['outcome']}"


def _open(blocked: bool) -> str:
    return "blocked" if blocked else "open"


def _decided(state: Mapping[str, Any]) -> str:
    """Since when, by whom and why, as far as somebody decided and said so."""
    if state["since"] is None:
        return ""
    by, why = (f" by {state['by']}" if state["by"] else ""), (f": {state['why']}" if state["why"] else "")
    return f" since {state['since']}{by}{why}"


def _figure(value: float | None) -> str:
    return "too little was seen" if value is None else f"{value:g}"


def _of_type(of: Mapping[str, Any]) -> str:
    return f"relevance {_figure(of['relevance'])}, before {_figure(of['before'])}, {of['answers']} answers"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"
