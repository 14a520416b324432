"""What the enrichment flow asks of models for the development conversations: calls and tokens per 1,000 messages.

Requests are the main flow's, prompts the enrichment flow's; a local service answers each with the least that fits its
schema. So what is sent is counted as it is, what comes back as little as can be: a model writes as many tokens as it
finds things to say, and what it finds is compared with what is remembered in its turn.
"""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from benchmarks.conversation_events import TENANT, message_lines
from benchmarks.locomo import Conversation
from benchmarks.model_server import COUNTED_BY, DIMENSION, serving
from recallflow.connectors.embedders import load_embedder, load_remote
from recallflow.connectors.llm.calls import OpenAiEmbeddings, OpenAiModel
from recallflow.connectors.llm.policy import Endpoint
from recallflow.control import Category, ControlHistory
from recallflow.embedder import Embedder
from recallflow.events import EnrichmentRequest
from recallflow.fields import parse_time
from recallflow.flows.embedded import EmbeddedEngine, StateLoop
from recallflow.flows.model_settings import EnrichmentSettings
from recallflow.flows.settings import Settings
from recallflow.llm import Cost
from recallflow.operators.async_call import Completions, Runtime
from recallflow.operators.enrichment.enrich import Thresholds, enrich
from recallflow.operators.enrichment.results import PositionedRequest
from recallflow.outputs import Output, TaskRequest
from recallflow.records import Position, Record
from recallflow.state.directory import StateDirectory

MESSAGES, QUERIES = "messages", "queries"
AT_ONCE = 20  # requests, or batches of them
TIMEOUT_S = 600.0
# Those of a chat between friends.
CATEGORIES = {
    "family": "Partners, children, parents, friends and pets, and what happens to them",
    "work": "Jobs, studies, projects and colleagues",
    "health": "Illness, medicine, sport and food that is or is not eaten",
    "travel": "Journeys, places visited or planned, and how to get there",
    "leisure": "Hobbies, music, books, films and things bought for fun",
}
EVERYTHING = EnrichmentSettings(relationships=True, facts=True, categories=True, summaries=True)
NOTHING = EnrichmentSettings()  # but vectors, where the embedder is a service


def measure(conversations: list[Conversation], batch_sizes: list[int]) -> dict[str, Any]:
    """Return the cost of a thousand messages, by the largest number of a session's messages in a call, and by task."""
    lines = [line for conversation in conversations for line in _lines(conversation)]
    messages = sum(len(conversation.turns) for conversation in conversations)
    found: dict[str, Any] = {"messages": messages, "counted_by": COUNTED_BY, "batches": {}}
    with serving({}) as service, Runtime(Completions()) as runtime:
        remote = load_remote(OpenAiEmbeddings("m", DIMENSION, Endpoint(service.url)))
        asked = [*requests(lines, load_embedder("hash"), EVERYTHING), *requests(lines, remote, NOTHING)]
        for size in batch_sizes:
            costs = runtime.run(spent(service.url, [*batches(asked, size)]))
            found["batches"][str(size)] = {
                task: {name: part / messages * 1000 for name, part in one._asdict().items()}
                for task, one in costs.items()
            }
    return found


def show(figures: dict[str, Any]) -> None:
    print(f"enrichment per 1,000 messages, of {figures['messages']:,}; tokens are {figures['counted_by']}")
    for size, costs in figures["batches"].items():
        print(f"  {f'{size} messages of a session a call':<34}{'calls':>10}{'tokens sent':>14}{'received, least':>18}")
        for task, one in costs.items():
            counts = one["calls"], one["prompt_tokens"], one["completion_tokens"]
            print("    {:<32}{:10,.0f}{:14,.0f}{:18,.0f}".format(task, *counts))


def requests(lines: list[bytes], embedder: Embedder, enrichment: EnrichmentSettings) -> list[PositionedRequest]:
    """What the main flow asks the enrichment flow, as if the messages came when they were said."""
    settings = Settings(partitions=1)
    decisions, outputs = ControlHistory(), list[Output]()
    for name, about in CATEGORIES.items():
        decisions.add(0, Category(type="category", tenant_id=TENANT, name=name, description=about))
    times_ms = (parse_time(orjson.loads(line)["timestamp"]) for line in lines)
    appended = enumerate(zip(lines, times_ms, strict=True))
    records = [Record(Position(MESSAGES, 0, offset), line, at_ms) for offset, (line, at_ms) in appended]
    fingerprint = settings.fingerprint(embedder)
    with (
        tempfile.TemporaryDirectory() as folder,
        StateDirectory.open(Path(folder) / "state", fingerprint, settings.cache_bytes) as directory,
    ):
        rules = settings.rules(embedder, QUERIES, input_ends=False, decisions=decisions)
        wanted = replace(rules, enrichment=enrichment.requested_tasks(embedder))
        engine = EmbeddedEngine(directory, embedder, settings, is_temporary=True)
        loop = StateLoop(engine, wanted, observe=outputs.append)
        for start in range(0, len(records), AT_ONCE):
            loop.apply(records[start : start + AT_ONCE])
        loop.end()
    bodies = [output.body for output in outputs if isinstance(output, TaskRequest)]
    parsed = map(EnrichmentRequest.model_validate_json, bodies)
    return [PositionedRequest(Position("enrichment.requests", 0, number), one) for number, one in enumerate(parsed)]


def batches(asked: list[PositionedRequest], size: int) -> Iterator[list[PositionedRequest]]:
    """Requests of a session, so many together, as those of a backlog are."""
    waiting = defaultdict[tuple[str, str | None], list[PositionedRequest]](list)
    for one in asked:
        # What an embedding service reads has nothing to do with what it reads beside.
        session = one.request.user_id, None if one.request.tasks == ["embed"] else one.request.session_id
        waiting[session].append(one)
        if len(waiting[session]) == size:
            yield waiting.pop(session)
    yield from waiting.values()


async def spent(url: str, grouped: list[list[PositionedRequest]]) -> dict[str, Cost]:
    """What it costs to have everything asked, by task. Raises RuntimeError where anything fails: what it cost would
    mean nothing."""
    endpoint = Endpoint(url, timeout_s=TIMEOUT_S)
    model, service = OpenAiModel("m", endpoint), OpenAiEmbeddings("m", DIMENSION, endpoint)
    concurrency_limit = asyncio.Semaphore(AT_ONCE)

    async def ask(batch: list[PositionedRequest]) -> None:
        async with concurrency_limit:
            results = await enrich(batch, model, service, Thresholds(), CATEGORIES)
        if failures := [failure.detail for result in results for failure in result.failures]:
            raise RuntimeError(f"a task failed: {failures[0]}")

    await asyncio.gather(*map(ask, grouped))
    await asyncio.gather(model.close(), service.close())
    costs: dict[str, Cost] = {task: one for (_, task), one in (model.meter.spent | service.meter.spent).items()}
    return costs | {"all": reduce(Cost.plus, costs.values())}


def _lines(conversation: Conversation) -> list[bytes]:
    """Return the conversation's messages, and the end of each session."""
    lines = list[bytes]()
    for _, session in groupby(message_lines(conversation), lambda line: orjson.loads(line)["session_id"]):
        lines += session
        last = orjson.loads(lines[-1])
        fields = {name: last[name] for name in ("tenant_id", "user_id", "session_id", "timestamp")}
        lines.append(orjson.dumps({"type": "episode.end"} | fields))
    return lines
