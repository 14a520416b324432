"""`recallflow graph …`: rollout and quality gate of the graph, and its content."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from recallflow.cli.engine import add_engine, open_engine
from recallflow.cli.flags import add_actions, add_control
from recallflow.cli.output import json_line, paragraph
from recallflow.cli.parser import Commands, add_command
from recallflow.cli.tenants import add_decisions, decide

_INDENT = " " * 4
MODES = ("off", "shadow", "canary")
GATES = {"open": False, "blocked": True}


def status_lines(response: Mapping[str, Any]) -> list[str]:
    """Return the tenant's rollout and gate, and the size of the user's graph."""
    report = response["graph_status"]
    rollout, gate = report["rollout"], report["gate"]
    mode = rollout["mode"] if rollout["enabled"] else f"{rollout['mode']}, but the graph is off (graph_enabled)"
    lines = [
        f"rollout  {mode}{_decided(rollout)}",
        f"gate     {'blocked' if gate['blocked'] else 'open'}{_decided(gate)}",
    ]
    lines += [f"{_INDENT}{name:<15} {_figure(value)}" for name, value in gate["windows"].items()]
    for kind, figures in gate["edge_types"].items():
        relevance = f"relevance {_figure(figures['relevance'])}, before {_figure(figures['before'])}"
        lines.append(f"{_INDENT}{kind}: {relevance}, {figures['answers']} answers")
    at_least = "" if report["complete"] else "at least "
    for name in ("nodes", "edges"):
        counts = ", ".join(f"{count:,} {kind}" for kind, count in report[name].items()) or "none"
        lines.append(f"{name:<8} {at_least}{counts}")
    return lines + [f"failed   {one['at']} {one['query_id']}: {one['error']}" for one in report["failures"]]


def trace_lines(response: Mapping[str, Any]) -> list[str]:
    """Return the starting points, every examined edge, and the added memories."""
    trace = response["graph_trace"]
    lines = [f"from     {seed['id']} ({seed['score']:g})" for seed in trace["seeds"]]
    for step in trace["steps"]:
        path = f"{step['source']} –{step['type']}– {step['target']}"
        lines.append(f"{_INDENT}{step['hop']}  {path}: {step['outcome']}")
    if trace["left_out"]:
        lines.append(f"{_INDENT}… and {trace['left_out']:,} more steps")
    lines += [
        f"adds     {one['id']} ({one['score']:g}): {one['why']['edge_type']} from {one['why']['from']}"
        for one in trace["expanded"]
    ] or ["adds     nothing"]
    return lines + ([f"not in answers: {trace['fallback']}"] if trace["fallback"] else [])


def fact_lines(response: Mapping[str, Any]) -> list[str]:
    """Return relations, each with the sentences that state it."""
    result = response["graph_facts"]
    lines = []
    for fact in result["facts"]:
        marks = f" ({', '.join(fact['marks'])})" if fact["marks"] else ""
        lines.append(f"{fact['source_name']} {fact['type']} {fact['target_name']}{marks}")
        lines += [paragraph(f"“{one['quote']}” {one['id']}", _INDENT) for one in fact["evidence"]]
    lines = lines or ["no relations found"]
    return lines if result["complete"] else [*lines, "the search was incomplete: name entities or types"]


def _decided(state: Mapping[str, Any]) -> str:
    """Return time, author and reason of a decision, as far as it has them."""
    if state["since"] is None:
        return ""
    by, why = (f" by {state['by']}" if state["by"] else ""), (f": {state['why']}" if state["why"] else "")
    return f" since {state['since']}{by}{why}"


def _figure(value: float | None) -> str:
    return "too few answers" if value is None else f"{value:g}"


def add_graph(commands: Commands) -> None:
    actions = add_actions(commands, "graph", "control and inspect the graph")
    description = (
        "Sends the decision to the control topic, or appends it to the file of --control; it applies to all later "
        "queries. A blocked gate stays blocked until it is opened; after opening, only later answers count."
    )
    reasons = "--by ann --why"
    rollout, gate = add_decisions(
        actions, run_graph_decision, description,
        ("rollout", "set whether the graph is off, measured only (shadow) or used in a tenant's answers (canary)",
         f'recallflow graph rollout acme shadow {reasons} "to measure it"'),
        ("gate", "override a tenant's quality gate", f'recallflow graph gate acme open {reasons} "a bad import"'),
        required=True,
    )  # fmt: skip
    rollout.add_argument("mode", choices=MODES)
    gate.add_argument("state", choices=GATES)
    status = add_command(actions, "status", run_graph_status)
    trace = add_command(actions, "trace", run_graph_trace)
    trace.add_argument("query", metavar="QUESTION")
    trace.add_argument("-k", type=int, help="number of ranked memories to start from (default: 10)")
    trace.add_argument("--hops", dest="traversal_depth", type=int, metavar="N", help="path length, 1 to 3 (default: 1)")
    facts = add_command(actions, "facts", run_graph_facts)
    facts.add_argument("query", nargs="?", metavar="WORDS", help="search words (default: the newest relations)")
    for flag, dest, metavar in (("--entity", "entities", "NAME"), ("--type", "types", "TYPE")):
        text = f"only relations of this {flag.removeprefix('--')}; may be repeated"
        facts.add_argument(flag, dest=dest, action="append", metavar=metavar, help=text)
    facts.add_argument("--limit", type=int, metavar="N", help="maximum number (default: 20)")
    for action in (status, trace, facts):
        add_engine(action)
        add_control(action)


def run_graph_decision(options: argparse.Namespace) -> None:
    if options.action == "rollout":
        decide(options, options.mode, "graph.rollout", {"mode": options.mode})
    else:
        decide(options, options.state, "gate.verdict", {"blocked": GATES[options.state]})


def run_graph_status(options: argparse.Namespace) -> int:
    """Print rollout, quality gate and counts.
    $ recallflow graph status --state-dir memory"""
    return _ask(options, "graph.status", status_lines)


def run_graph_trace(options: argparse.Namespace) -> int:
    """Print every step of the graph expansion of a question.
    $ recallflow graph trace "Who is allergic?" --hops 2 --state-dir memory"""
    return _ask(options, "graph.trace", trace_lines, "query", "k", "traversal_depth")


def run_graph_facts(options: argparse.Namespace) -> int:
    """Print relations and the memories that state them.
    $ recallflow graph facts --limit 5 --state-dir memory"""
    return _ask(options, "graph.facts", fact_lines, "query", "entities", "types", "limit")


def _ask(options: argparse.Namespace, query_type: str, lines_of: Callable[..., list[str]], *names: str) -> int:
    """Ask a query with the options of these names, and print the response."""
    fields = {name: value for name in names if (value := getattr(options, name)) is not None}
    with open_engine(options) as engine:
        response = engine.ask(query_type, fields)
    has_result = query_type.replace(".", "_") in response  # it has none if the user's data cannot be decrypted
    if options.json:
        json_line(response)
    elif has_result:
        print("\n".join(lines_of(response)))
    else:
        print("\n".join(f"{warning['code']}: {warning['detail']}" for warning in response["warnings"]))
    return 0 if has_result else 1
