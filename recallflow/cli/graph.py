"""`recallflow graph …`: rollout and quality gate of the graph, and its content."""

import argparse
import time
from collections.abc import Mapping
from typing import Any, cast

from recallflow.cli.options import ENGINE, add_actions, add_control, add_kafka, add_owner, at_rest, config, decisions
from recallflow.cli.output import json_line, paragraph
from recallflow.cli.parser import Commands
from recallflow.cli.tenants import add_reasons, client, decide

_INDENT = " " * 4


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
    lines += [f"{name:<8} {at_least}{_counts(report[name])}" for name in ("nodes", "edges")]
    return lines + [f"failed   {one['at']} {one['query_id']}: {one['error']}" for one in report["failures"]]


def trace_lines(response: Mapping[str, Any]) -> list[str]:
    """Return the starting points, every examined edge, and the added memories."""
    found = response["graph_trace"]
    lines = [f"from     {seed['id']} ({seed['score']:g})" for seed in found["seeds"]]
    for step in found["steps"]:
        path = f"{step['source']} –{step['type']}– {step['target']}"
        lines.append(f"{_INDENT}{step['hop']}  {path}: {step['outcome']}")
    if found["left_out"]:
        lines.append(f"{_INDENT}… and {found['left_out']:,} more steps")
    lines += [
        f"adds     {one['id']} ({one['score']:g}): {one['why']['edge_type']} from {one['why']['from']}"
        for one in found["expanded"]
    ] or ["adds     nothing"]
    return lines + ([f"not in answers: {found['fallback']}"] if found["fallback"] else [])


def fact_lines(response: Mapping[str, Any]) -> list[str]:
    """Return relations, each with the sentences that state it."""
    found = response["graph_facts"]
    lines = []
    for fact in found["facts"]:
        marks = f" ({', '.join(fact['marks'])})" if fact["marks"] else ""
        lines.append(f"{fact['source_name']} {fact['type']} {fact['target_name']}{marks}")
        lines += [paragraph(f"“{one['quote']}” {one['id']}", _INDENT) for one in fact["evidence"]]
    lines = lines or ["no relations found"]
    return lines if found["complete"] else [*lines, "the search was incomplete: name entities or types"]


def _decided(state: Mapping[str, Any]) -> str:
    """Return time, author and reason of a decision, as far as they are given."""
    if state["since"] is None:
        return ""
    by, why = (f" by {state['by']}" if state["by"] else ""), (f": {state['why']}" if state["why"] else "")
    return f" since {state['since']}{by}{why}"


def _figure(value: float | None) -> str:
    return "too few answers" if value is None else f"{value:g}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "none"


MODES = ("off", "shadow", "canary")
GATES = {"open": False, "blocked": True}


def add_graph(commands: Commands) -> None:
    actions = add_actions(commands, "graph", "control and inspect the graph")
    rollout = actions.add_parser(
        "rollout",
        help="set whether the graph adds memories to a tenant's answers",
        description="Sends the decision to the control topic, or appends it to the file of --control: off, shadow "
        "(measured only) or canary (in the answers). It applies to all later queries.",
        examples=('recallflow graph rollout acme shadow --by ann --why "to measure it" --control control.jsonl',),
    )
    rollout.add_argument("tenant", metavar="TENANT")
    rollout.add_argument("mode", choices=MODES)
    rollout.set_defaults(run=run_graph_decision)
    gate = actions.add_parser(
        "gate",
        help="override a tenant's quality gate",
        description="Sends a verdict to the control topic, or appends it to the file of --control. A blocked gate "
        "stays blocked until it is opened; after opening, only later answers count.",
        examples=('recallflow graph gate acme open --by ann --why "it was a bad import" --control control.jsonl',),
    )
    gate.add_argument("tenant", metavar="TENANT")
    gate.add_argument("state", choices=GATES)
    gate.set_defaults(run=run_graph_decision)
    for action in (rollout, gate):
        add_kafka(action, "topics.control")
        add_control(action)
    add_reasons(rollout, gate, required=True)
    _add_inspection_commands(actions)


def _add_inspection_commands(actions: Commands) -> None:
    where = "Asks the engine on Kafka, or with --state-dir a directory whose engine is stopped."
    status = actions.add_parser(
        "status",
        help="print rollout, quality gate and counts",
        description=where,
        examples=("recallflow graph status --state-dir memory",),
    )
    status.set_defaults(run=run_graph_query, type="graph.status", shown=status_lines)
    trace = actions.add_parser(
        "trace",
        help="print every step of the graph expansion of a question",
        description=where,
        examples=('recallflow graph trace "Who is allergic?" --hops 2 --state-dir memory',),
    )
    trace.add_argument("query", metavar="QUESTION")
    trace.add_argument("-k", type=int, help="number of ranked memories to start from (default: 10)")
    trace.add_argument("--hops", dest="traversal_depth", type=int, metavar="N", help="path length, 1 to 3 (default: 1)")
    trace.set_defaults(run=run_graph_query, type="graph.trace", shown=trace_lines)
    facts = actions.add_parser(
        "facts",
        help="print relations and the memories that state them",
        description=where,
        examples=("recallflow graph facts --limit 5 --state-dir memory",),
    )
    facts.add_argument("query", nargs="?", metavar="WORDS", help="search words (default: the newest relations)")
    for flag, dest, metavar in (("--entity", "entities", "NAME"), ("--type", "types", "TYPE")):
        text = f"only relations of this {flag.removeprefix('--')}; may be repeated"
        facts.add_argument(flag, dest=dest, action="append", metavar=metavar, help=text)
    facts.add_argument("--limit", type=int, metavar="N", help="maximum number (default: 20)")
    facts.set_defaults(run=run_graph_query, type="graph.facts", shown=fact_lines)
    for action in (status, trace, facts):
        action.add_argument("--json", action="store_true", help="print the response as JSON")
        add_kafka(action, *ENGINE, "topics.queries", "topics.responses")
        add_control(action)
        add_owner(action)


def run_graph_decision(options: argparse.Namespace) -> int:
    if options.action == "rollout":
        mode = {"mode": options.mode}
        return decide(options, options.mode, "graph.rollout", mode, lambda opened, given: opened.graph_rollout(**given))
    verdict = {"blocked": GATES[options.state]}
    return decide(options, options.state, "gate.verdict", verdict, lambda opened, given: opened.graph_gate(**given))


def run_graph_query(options: argparse.Namespace) -> int:
    named = ("query", "k", "traversal_depth", "entities", "types", "limit")
    asked = {name: given for name in named if (given := getattr(options, name, None)) is not None}
    response = _ask_directory(options, asked) if options.state_dir else _ask_engine(options, asked)
    if response["status"] == "error":
        print(f"error: {response['error']['message']}")
        return 1
    is_there = options.type.replace(".", "_") in response  # absent if the user's data cannot be decrypted
    if options.json:
        json_line(response)
    elif is_there:
        print("\n".join(options.shown(response)))
    else:
        print("\n".join(f"{warning['code']}: {warning['detail']}" for warning in response["warnings"]))
    return 0 if is_there else 1


def _ask_directory(options: argparse.Namespace, asked: dict[str, Any]) -> dict[str, Any]:
    import orjson

    from recallflow.flows.embedded import process
    from recallflow.state.description import describe

    chosen = config(options)
    describe(chosen.named_state_dir())  # a read must not create the directory
    scope = {"tenant_id": options.tenant, "user_id": options.user, "environment": options.environment}
    line = orjson.dumps({"type": options.type, "timestamp": time.time_ns() // 1_000_000} | scope | asked)
    path = chosen.named_state_dir()
    return process([line], chosen.engine, path, decisions(options), chosen.models, at_rest(chosen)).responses[0]


def _ask_engine(options: argparse.Namespace, asked: dict[str, Any]) -> dict[str, Any]:
    from recallflow.queries import QueryEvent
    from recallflow.verbs.arguments import ClientScope

    query = cast(QueryEvent, ClientScope(options.tenant, options.environment).event(options.type, options.user, asked))
    with client(config(options), options.tenant, options.environment) as opened:
        return opened.ask(query).model_dump(mode="json", exclude_unset=True)
