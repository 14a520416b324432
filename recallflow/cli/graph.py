"""`recallflow graph …`: who may have what the graph adds, and what it is made of."""

import argparse
import time
from typing import Any, cast

from recallflow.cli import graph_text
from recallflow.cli.deciding import add_reasons, client, decide
from recallflow.cli.options import ENGINE, add_control, add_kafka, add_owner, config, decisions
from recallflow.cli.output import json_line

MODES = ("off", "shadow", "canary")
GATES = {"open": False, "blocked": True}


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("graph", help="the graph: who has it in answers, and what is in it")
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")
    rollout = actions.add_parser(
        "rollout",
        help="decide what becomes of what the graph adds to a tenant's answers",
        description="Sends the decision to the control topic, or appends it to the file of --control: off, shadow "
        "(measured only) or canary (in the answers), for all queries that come after it.",
        examples=('recallflow graph rollout acme shadow --by ann --why "to measure it" --control control.jsonl',),
    )
    rollout.add_argument("tenant", metavar="TENANT")
    rollout.add_argument("mode", choices=MODES)
    rollout.set_defaults(run=run_decide, decided="mode")
    gate = actions.add_parser(
        "gate",
        help="overrule a tenant's quality gate",
        description="Sends a verdict to the control topic, or appends it to the file of --control. What is blocked so "
        "is so until it is opened so; once opened, the gate judges by what it sees from then on.",
        examples=('recallflow graph gate acme open --by ann --why "it was a bad import" --control control.jsonl',),
    )
    gate.add_argument("tenant", metavar="TENANT")
    gate.add_argument("state", choices=GATES)
    gate.set_defaults(run=run_decide, decided="state")
    for action in (rollout, gate):
        add_kafka(action, "topics.control")
        add_control(action)
    add_reasons(rollout, gate, required=True)
    _add_questions(actions)


def _add_questions(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    where = "Asks the engine over Kafka; with --state-dir the directory of one that does not run."
    status = actions.add_parser(
        "status",
        help="rollout, quality gate, counts",
        description=where,
        examples=("recallflow graph status --state-dir memory",),
    )
    status.set_defaults(run=run_ask, type="graph.status", shown=graph_text.status)
    trace = actions.add_parser(
        "trace",
        help="every step of what it would add to an answer",
        description=where,
        examples=('recallflow graph trace "Who is allergic?" --hops 2 --state-dir memory',),
    )
    trace.add_argument("query", metavar="QUESTION")
    trace.add_argument("-k", type=int, help="ranked memories to begin with (default: 10)")
    trace.add_argument("--hops", dest="traversal_depth", type=int, metavar="N", help="1 to 3 (default: 1)")
    trace.set_defaults(run=run_ask, type="graph.trace", shown=graph_text.trace)
    facts = actions.add_parser(
        "facts",
        help="relations, with the memories that state them",
        description=where,
        examples=("recallflow graph facts --limit 5 --state-dir memory",),
    )
    facts.add_argument("query", nargs="?", metavar="WORDS", help="what they are about (default: the newest)")
    facts.add_argument("--entity", dest="entities", action="append", metavar="NAME", help="only at it; may be repeated")
    facts.add_argument("--type", dest="types", action="append", metavar="TYPE", help="only of it; may be repeated")
    facts.add_argument("--limit", type=int, metavar="N", help="at most so many (default: 20)")
    facts.set_defaults(run=run_ask, type="graph.facts", shown=graph_text.facts)
    for action in (status, trace, facts):
        action.add_argument("--json", action="store_true", help="print the response as JSON")
        add_kafka(action, *ENGINE, "topics.queries", "topics.responses")
        add_control(action)
        add_owner(action)


# ---------------------------------------------------------------------- decisions


def run_decide(options: argparse.Namespace) -> int:
    said = " ".join([options.action, options.tenant, getattr(options, options.decided)])
    if options.decided == "mode":
        mode = {"mode": options.mode}
        return decide(options, said, "graph.rollout", mode, lambda opened, given: opened.graph_rollout(**given))
    verdict = {"blocked": GATES[options.state]}
    return decide(options, said, "gate.verdict", verdict, lambda opened, given: opened.graph_gate(**given))


# ---------------------------------------------------------------------- questions


def run_ask(options: argparse.Namespace) -> int:
    named = ("query", "k", "traversal_depth", "entities", "types", "limit")
    asked = {name: given for name in named if (given := getattr(options, name, None)) is not None}
    response = _ask_directory(options, asked) if options.state_dir else _ask_engine(options, asked)
    if response["status"] == "error":
        print(f"error: {response['error']['message']}")
        return 1
    is_there = options.type.replace(".", "_") in response  # not where nothing of the user can be opened
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
    from recallflow.flows.settings import open_at_rest
    from recallflow.state.directory import describe

    chosen = config(options)
    describe(chosen.named_state_dir())  # asking makes no directory
    scope = {"tenant_id": options.tenant, "user_id": options.user, "environment": options.environment}
    line = orjson.dumps({"type": options.type, "timestamp": time.time_ns() // 1_000_000} | scope | asked)
    at_rest, path = open_at_rest(chosen.encryption), chosen.named_state_dir()
    return process([line], chosen.engine, path, decisions(options), chosen.models, at_rest).responses[0]


def _ask_engine(options: argparse.Namespace, asked: dict[str, Any]) -> dict[str, Any]:
    from recallflow.queries import QueryEvent
    from recallflow.verbs.scope import Scope

    query = cast(QueryEvent, Scope(options.tenant, options.environment).event(options.type, options.user, asked))
    with client(config(options), options.tenant, options.environment) as opened:
        return opened.ask(query).model_dump(mode="json", exclude_unset=True)
