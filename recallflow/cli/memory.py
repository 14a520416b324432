"""`recallflow remember` and `recallflow ask`: one memory, one question."""

import argparse
import time
from typing import Any, get_args

import orjson

from recallflow.cli.options import ENGINE, GRAPH, LLM, RERANK, add_control, add_owner, add_settings, config, decisions
from recallflow.cli.output import paragraph
from recallflow.errors import RecallflowError
from recallflow.flows.embedded import Processed, process
from recallflow.flows.encryption import open_at_rest
from recallflow.queries import Mode
from recallflow.state.directory import describe

NOTHING_RELEVANT = "nothing_relevant"
_SEEN = {"no_memories", "k_exceeds_memories", NOTHING_RELEVANT}  # warnings of what the list of memories shows

_STEPS = {  # of a language model
    "select_categories": "show the summaries of the categories that it selects",
    "check_sufficiency": "show summaries alone where they answer the question",
    "rewrite": "ask smaller questions as well, up to three that it makes of the question",
}


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    remember = commands.add_parser("remember", help="store one memory", description="Stores one memory.")
    remember.add_argument("text", metavar="TEXT")
    remember.add_argument("--kind", default="fact", metavar="KIND", help="fact, preference, rule, … (default: fact)")
    remember.add_argument("--id", metavar="ID", help="idempotency key")
    remember.set_defaults(run=run_remember)
    ask = commands.add_parser("ask", help="ask one question", description="Asks one question.")
    ask.add_argument("question", metavar="QUESTION")
    ask.add_argument("-k", type=int, default=5, help="how many memories (default: 5)")
    ask.add_argument("--mode", choices=get_args(Mode), default="hybrid", help="ranking mode (default: hybrid)")
    ask.add_argument(
        "--min-relevance", type=float, metavar="X", help="only memories at least so relevant, 0 to 1; 0 shows any"
    )
    for step, text in _STEPS.items():
        ask.add_argument(f"--{step.replace('_', '-')}", action="store_true", help=f"with --llm: {text}")
    add_control(ask)
    ask.set_defaults(run=run_ask)
    for parser in (remember, ask):
        parser.add_argument("--json", action="store_true", help="print the response as JSON")
        add_settings(parser, *ENGINE, *((*GRAPH, *RERANK, *LLM, "llm.query_timeout_ms") if parser is ask else ()))
        add_owner(parser)


def run_remember(options: argparse.Namespace) -> int:
    event = {"type": "memory", "content": options.text, "kind": options.kind, "receipt": True}
    if options.id is not None:
        event["id"] = options.id
    receipt = _run(options, event).receipts[0]
    print(orjson.dumps(receipt).decode() if options.json else f"{receipt['outcome']}: {receipt['memory_id']}")
    return 0


def run_ask(options: argparse.Namespace) -> int:
    describe(config(options).named_state_dir())  # asking makes no directory
    query = {"type": "recall", "query": options.question, "k": options.k, "mode": options.mode}
    if options.min_relevance is not None:
        query["min_relevance"] = options.min_relevance
    query |= {step: True for step in _STEPS if getattr(options, step)}
    response = _run(options, query).responses[0]
    print(orjson.dumps(response).decode() if options.json else _readable(response, options))
    return 1 if response["status"] == "error" else 0


def _run(options: argparse.Namespace, event: dict[str, Any]) -> Processed:
    chosen = config(options)
    scope = {"tenant_id": options.tenant, "user_id": options.user, "environment": options.environment}
    stamped = event | scope | {"timestamp": time.time_ns() // 1_000_000}
    known = decisions(options) if "control" in options else None
    at_rest, path = open_at_rest(chosen.encryption), chosen.named_state_dir()
    processed = process([orjson.dumps(stamped)], chosen.engine, path, known, chosen.models, at_rest)
    if processed.rejected and not processed.responses:
        raise RecallflowError(processed.rejected[0]["error"]["message"])
    return processed


def _readable(response: dict[str, Any], options: argparse.Namespace) -> str:
    if response["status"] == "error":
        return f"error: {response['error']['message']}"
    lines = [f"{w['code']}: {w['detail']}" for w in response["warnings"] if w["code"] not in _SEEN]
    codes, shown = {w["code"] for w in response["warnings"]}, response["memories"]
    if "decryption_failed" in codes and not shown:
        return "\n".join(lines)
    if options.select_categories or response.get("sufficient"):
        summaries = response["context"]["summaries"].items()
        lines += [paragraph(f"{category}: {summary}", "  ") for category, summary in summaries]
    if response.get("sufficient"):
        return "\n".join(lines)
    if NOTHING_RELEVANT in codes and (options.min_relevance is None or not shown):
        return "\n".join([*lines, "nothing about that (--min-relevance 0 shows the nearest memories)"])
    return "\n".join(lines + ([ranked(memory) for memory in shown] or ["nothing remembered yet"]))


def ranked(memory: dict[str, Any]) -> str:
    """One memory of an answer, over two lines or more."""
    who = memory["name"] or memory["role"] or memory["kind"]
    shown = _passage(memory["content"], memory["excerpt"])
    first = paragraph(f"{memory['created_at'][:10]} {who}: {shown}", " " * 5, f"{memory['rank']:>3}. ")
    because = "; ".join(reason["text"] for reason in memory["why"])
    if "question" in memory:
        because += f"; asked beside: {memory['question']}"
    return first + "\n" + paragraph(f"because: {because}", " " * 5)


def _passage(content: str, excerpt: dict[str, int] | None) -> str:
    """The text; of a long one the passage that fits the question best, and how much there is beside it."""
    if excerpt is None:
        return content
    passage = content[excerpt["start"] : excerpt["end"]]
    before, behind = excerpt["start"] > 0, excerpt["end"] < len(content)
    rest = len(content) - len(passage)
    return f"{'… ' * before}{passage}{' …' * behind} ({rest:,} characters more)"
