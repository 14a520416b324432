"""Facts, categories and summaries of memories: prompts, and the events derived from the answers.

A fact is a sentence that is understandable without the conversation."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from recallflow.events import EnrichmentRequest, ShownMemory
from recallflow.fields import format_time, wire_time
from recallflow.language.scripts import plain
from recallflow.limits import SOURCES_MAX
from recallflow.llm import Task
from recallflow.operators.enrichment import prompt_frame as frame
from recallflow.operators.enrichment import results
from recallflow.operators.enrichment.results import AnswerClaims, Draft, ModelCall, RejectedClaim
from recallflow.operators.graph.names import NAME_CHARACTERS

FACTS_MAX = 10  # per message
FACT_CHARACTERS = 500
ENTITIES_MAX = 8  # per fact
CONTEXT_MAX = 6  # earlier messages
CITATIONS_MAX = 20  # facts of one answer with the same message as an additional source
KINDS = ("fact", "preference", "decision", "plan", "event", "relationship", "skill", "goal")
ENTITY_TYPES = ("person", "place", "organisation", "product", "event", "other")
_FACTS_RULES = (
    "You are given messages of a conversation (m1, m2 …) and some that came before them (c1, c2 …). Write down what of "
    "m1, m2 … is worth knowing in months: facts about people and what belongs to them, preferences, decisions, plans, "
    "events. Leave out greetings, questions, small talk, what holds for the moment only, general knowledge, and what "
    "the messages before tell: they are there to be understood, not read for facts. Of an assistant's messages only "
    "what was promised, recommended or done for somebody counts. Each fact is one sentence in the language of its "
    "message that is understood by itself: people by their names ('by' says who writes; call 'user' the user), never "
    "'I', 'you' or 'she'. Use only names and numbers that the messages have, as they write them. 'time' tells when a "
    "message was written: work out dates from it, and give them as valid_from and valid_to (YYYY-MM-DD) only where the "
    "message says since when or until when the fact holds, or when it happens. Give the number of the message, its "
    "kind, your confidence from 0 to 1, as evidence the words of that message, copied exactly, that say it, and the "
    f"names in the fact as entities. At most {FACTS_MAX} facts a message, each once; if there are none, the list is "
    "empty."
)
_FACTS = frame.objects(
    message=frame.TEXT,
    content=frame.TEXT,
    kind=frame.one_of(KINDS),
    confidence=frame.NUMBER,
    evidence=frame.TEXT,
    entities=frame.objects(name=frame.TEXT, type=frame.one_of(ENTITY_TYPES)),
    valid_from=frame.TEXT_OR_NONE,
    valid_to=frame.TEXT_OR_NONE,
)
_CATEGORISE_RULES = (
    "You are given texts of somebody's memory (m1, m2 …), and categories with what belongs into them. Name for each "
    "text the one category that it belongs into, with your confidence from 0 to 1. Leave out texts that belong into "
    "none. What a text says of categories counts for nothing: only what it is about."
)


def facts(numbers: Sequence[int], requests: Sequence[EnrichmentRequest], confidence: float) -> ModelCall:
    """Return the model call for the facts in the messages of these requests."""
    messages = frame.numbered((one.memories[0] for one in requests), frame.TEXT_CHARACTERS)
    message_ids = {one.memory_id for one in messages.values()}
    # Derived memories are not shown, because nothing is derived from them.
    others = [one for one in requests[0].recent if one.memory_id not in message_ids and one.derived_from is None]
    earlier = sorted(others[:CONTEXT_MAX], key=lambda one: one.created_at)
    context = frame.numbered(earlier, frame.CONTEXT_CHARACTERS, "c")
    data = {"before": frame.as_data(context), "messages": frame.as_data(messages)}
    prompt = frame.prompt("facts", "facts-1", _FACTS_RULES, data, frame.fields(facts=_FACTS), len(messages))
    return ModelCall(numbers, prompt, lambda answer: _FactReader(messages, context, requests, confidence).read(answer))


class _FactReader:
    """The reader of one answer. It collects the facts of each message."""

    def __init__(
        self,
        messages: Mapping[str, ShownMemory],
        context: Mapping[str, ShownMemory],
        requests: Sequence[EnrichmentRequest],
        confidence: float,
    ) -> None:
        self._messages, self._context, self._confidence_min = messages, context, confidence
        self._requests = dict(zip(messages, requests, strict=True))
        self._claims = {number: AnswerClaims() for number in messages}
        self._seen = set[str]()
        self._citations = Counter[str]()
        self._authors = [frame.author(one) for one in (*messages.values(), *context.values())]

    def read(self, answer: Mapping[str, Any]) -> list[AnswerClaims]:
        """Return the claims about each message. Claims about unknown messages are counted at the first message."""
        first = self._claims["m1"]
        for claim in first.within_limit(answer["facts"]):
            claims = self._claims.get(claim["message"], first)
            with claims.catch_rejection():
                claims.drafts.append(self._fact(claim, claims))
        return [*self._claims.values()]

    def _fact(self, claim: Mapping[str, Any], claims: AnswerClaims) -> Draft:
        """Return the draft of a fact event. Raise RejectedClaim for an invalid fact."""
        message = self._messages.get(claim["message"])
        if message is None:
            raise RejectedClaim("unknown_id")
        confidence = results.check_confidence(claim, self._confidence_min)
        content = results.check_text(claim["content"], FACT_CHARACTERS)
        if not frame.contains_quote(message.content, claim["evidence"]):
            raise RejectedClaim("no_evidence")
        since, until = results.check_time(claim["valid_from"]), results.check_time(claim["valid_to"])
        if since is not None and until is not None and until < since:
            raise RejectedClaim("wrong_date")
        others = self._others(content, message, [since, until])
        if plain(content) in self._seen:
            raise RejectedClaim("duplicate")
        if len(claims.drafts) == FACTS_MAX or any(self._citations[one.memory_id] == CITATIONS_MAX for one in others):
            raise RejectedClaim("too_many")
        self._seen.add(plain(content))
        self._citations.update(one.memory_id for one in others)
        request = self._requests[claim["message"]]
        fields = {
            "type": "memory",
            "timestamp": wire_time(message.created_at),
            "project_id": request.project_id,
            "session_id": request.session_id,
            "content": content,
            "kind": claim["kind"],
            "layer": "long_term",
            "confidence": confidence,
            "entities": _entities(claim["entities"], content, claims) or None,
            "valid_from": None if since is None else wire_time(since),
            "valid_to": None if until is None else wire_time(until),
        }
        return Draft({name: value for name, value in fields.items() if value is not None}, message, others)

    def _others(self, content: str, message: ShownMemory, times: Sequence[int | None]) -> list[ShownMemory]:
        """Return other messages as sources of a fact's names and numbers. Raise RejectedClaim if one has no source."""
        others = [one for one in (*self._messages.values(), *self._context.values()) if one is not message]
        year = format_time(message.created_at)[:4]  # months and days must be in the fact's dates or in a text
        own = [message.content, *self._authors, frame.date_words(times), year]
        used = frame.sources_of(content, own, [one.content for one in others])
        if used is None:
            raise RejectedClaim("not_in_texts")
        return [others[number] for number in used]


def _entities(claimed: Sequence[Mapping[str, Any]], content: str, claims: AnswerClaims) -> list[dict[str, str]]:
    """Return the entities that a fact names. Invalid entities are counted as rejected, and the fact is kept."""
    kept = dict[str, dict[str, str]]()
    for one in claims.within_limit(claimed):
        with claims.catch_rejection():
            name = results.check_text(one["name"], NAME_CHARACTERS)
            if not frame.contains_name(content, name):
                raise RejectedClaim("not_in_texts")
            if plain(name) in kept:
                raise RejectedClaim("duplicate")
            if len(kept) == ENTITIES_MAX:
                raise RejectedClaim("too_many")
            kept[plain(name)] = {"name": name, "type": one["type"]}
    return [*kept.values()]


def categorise(
    numbers: Sequence[int], requests: Sequence[EnrichmentRequest], categories: Mapping[str, str], confidence: float
) -> ModelCall:
    """Return the model call for the categories of memories. `categories`: names and descriptions, not empty."""
    memories = frame.numbered((one.memories[0] for one in requests), frame.CONTEXT_CHARACTERS)
    shown = frame.first_categories(categories)
    data = {"categories": frame.category_data(shown), "texts": frame.as_data(memories)}
    assigned = frame.objects(memory=frame.TEXT, category=frame.one_of([*shown]), confidence=frame.NUMBER)
    answer = frame.fields(assigned=assigned)
    prompt = frame.prompt("categorise", "categorise-1", _CATEGORISE_RULES, data, answer, len(memories))
    return ModelCall(numbers, prompt, lambda answer: _read_categories(answer, memories, shown, confidence))


def _read_categories(
    answer: Mapping[str, Any], memories: Mapping[str, ShownMemory], categories: Mapping[str, str], confidence_min: float
) -> list[AnswerClaims]:
    by_memory = {number: AnswerClaims() for number in memories}
    for claim in by_memory["m1"].within_limit(answer["assigned"]):
        claims = by_memory.get(claim["memory"], by_memory["m1"])
        with claims.catch_rejection():
            memory = memories.get(claim["memory"])
            if memory is None or claim["category"] not in categories:
                raise RejectedClaim("unknown_id")
            results.check_confidence(claim, confidence_min)
            if claims.drafts:
                raise RejectedClaim("duplicate")
            fields = {"type": "memory.update", "timestamp": wire_time(memory.created_at)}
            fields |= {"memory_id": memory.memory_id, "category": claim["category"]}
            claims.drafts.append(Draft(fields, memory))
    return [*by_memory.values()]


SUMMARY_CHARACTERS, TARGET_CHARACTERS = 1_200, 800
TEXTS_CHARACTERS = 24_000  # of all shown memories
_SUMMARY_RULES = (
    f"Write in the language of most of the texts, at most {TARGET_CHARACTERS} characters, as plain sentences without "
    "headings. People go by their names ('by' says who writes). Use only names and numbers that the texts have, as "
    "they write them, and add nothing that they do not tell. Where a later text changes what an earlier one tells, "
    "tell what holds now."
)
_CATEGORY_RULES = (
    "You are given a category of somebody's memory and the texts in it, oldest first. Sum up what they tell that is of "
    f"use for answering questions: who, what, when, preferences, decisions. {_SUMMARY_RULES}"
)
_EPISODE_RULES = (
    "You are given the messages of a conversation that has ended, oldest first. Sum up what it was about, what was "
    f"decided, and what was told of people. {_SUMMARY_RULES}"
)


def summarise(task: Task, number: int, request: EnrichmentRequest) -> ModelCall:
    """Return the model call for the summary of a category or of an episode."""
    if task == "summarise_category":
        version, rules, about = "summarise-category-1", _CATEGORY_RULES, {"category": str(request.category)}
        fields = {"type": "category.summary", **about}
    else:
        version, rules, about = "summarise-episode-1", _EPISODE_RULES, {}
        fields = {"type": "episode.summary", "episode_id": str(request.episode_id)}
    memories = _within_budget(request.memories)
    data = {**about, "texts": frame.as_data(frame.numbered(memories, frame.CONTEXT_CHARACTERS))}
    prompt = frame.prompt(task, version, rules, data, frame.fields(summary=frame.TEXT), 4)
    return ModelCall([number], prompt, lambda answer: [_read_summary(answer, memories, [*about.values()], fields)])


def _within_budget(memories: Sequence[ShownMemory]) -> list[ShownMemory]:
    """Return the newest memories up to a number of characters, oldest first."""
    fitting, room = list[ShownMemory](), TEXTS_CHARACTERS
    for memory in sorted(memories, key=lambda one: -one.created_at)[: SOURCES_MAX + 1]:
        shown = frame.cut(memory, frame.CONTEXT_CHARACTERS)
        room -= len(shown.content)
        if room < 0:
            break
        fitting.insert(0, shown)
    return fitting


def _read_summary(
    answer: Mapping[str, Any], memories: Sequence[ShownMemory], about: Sequence[str], fields: Mapping[str, Any]
) -> AnswerClaims:
    claims = AnswerClaims()
    with claims.catch_rejection():
        summary = results.check_text(answer["summary"], SUMMARY_CHARACTERS)
        texts = [f"{frame.author(one)}\n{one.content}" for one in memories]
        times = frame.date_words(one.created_at for one in memories)
        if frame.sources_of(summary, [*about, *texts, times], []) is None:
            raise RejectedClaim("not_in_texts")
        first, *others = memories
        at = wire_time(max(one.created_at for one in memories))
        claims.drafts.append(Draft({**fields, "timestamp": at, "summary": summary}, first, others))
    return claims
