"""Enrichment requests of an event: a pure function of state, event and settings.

A new memory, or a memory with a new text, causes one request for all its tasks. A derived memory is only compared with
similar ones, to find contradictions; nothing is derived from it again. Facts are extracted from messages of users, of
the assistant, which may promise or recommend something, and of authors with a name; not from other texts of tools."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any
from zlib import crc32

from pydantic import ValidationError

from recallflow import events
from recallflow.control import ControlHistory, categories
from recallflow.events import EnrichmentRequest, ShownEntity, ShownMemory, content_hash, embedding_input
from recallflow.language.analysis import sentences, stems
from recallflow.llm import Task
from recallflow.operators.events import Write
from recallflow.operators.graph.write import DIGITS, RememberedMemory, cosines
from recallflow.operators.rules import EnrichmentTasks
from recallflow.operators.view import View
from recallflow.outputs import TaskRequest
from recallflow.state.graph_codec import EPISODE_KIND, NodeKey, is_entity, node_key
from recallflow.state.hot_graph import max_differing_bits
from recallflow.state.rows import Entry, EpisodeRow, MemoryRow, Vectors

TEXT_CHARACTERS = 8_000  # the maximum length of the enriched memory's text
CONTEXT_CHARACTERS = 2_000  # the maximum length of each other memory's text
LATEST_EPISODES = 2  # the newest episodes of a session, which are searched for the session's newest memories
_CONTEXT = ("recent", "entities", "similar")  # fields with context, in the order of removal
_CHARACTERS_MIN = 100  # of a text that was cut
ENTITIES_MAX = 20
_NAMED_MAX = 8  # entities that a text names
_SENTENCE_CHARACTERS = 300
EPISODE_MESSAGES = 50  # the newest messages of an episode
EPISODE_CHARACTERS = 20_000
EPISODE_MESSAGES_MIN = 2  # a single message needs no summary
CATEGORY_MEMORIES = 40  # the newest memories of a category
SUMMARY_SIZES = (5, 10, 20, 40)  # numbers of memories at which a category is summarised
MEMORY, EPISODE, CATEGORY = 10, 11, 12  # the numbers of the requests among the outputs of a record
_SPEAKER_ROLES = frozenset(("user", "assistant"))
_CONTEXT_TASKS = frozenset(("extract", "facts", "resolve"))


def shown_memory(row: MemoryRow, characters: int = CONTEXT_CHARACTERS, similarity: float | None = None) -> ShownMemory:
    """Convert a stored memory into a memory of a request. Stored fields are valid, so they are not validated again."""
    return ShownMemory.model_construct(
        memory_id=row.id,
        content=row.content[:characters],
        content_hash=content_hash(row.content),
        kind=row.kind,
        role=row.role,
        name=row.name,
        category=row.category,
        created_at=row.created_ms,
        similarity=similarity,
        derived_from=None if row.derived_from is None else row.derived_from["memory_id"],
    )


def recent(view: View, row: MemoryRow, at_most: int) -> list[ShownMemory]:
    """Return the owner's newest memories of the same project, first from the same session. Memories of other projects
    are excluded, because texts derived from the context belong to the memory's project."""
    if not at_most:
        return []
    seqs = dict[int, None]()
    if row.session_id is not None or row.role is not None:  # facts without a session have no episode
        for episode in view.episodes(row.session_id)[: -LATEST_EPISODES - 1 : -1]:
            seqs |= dict.fromkeys(view.graph.members(node_key(EPISODE_KIND, episode.id), at_most + 1))
    seqs |= dict.fromkeys(range(view.newest, max(-1, view.newest - at_most - 1), -1))
    seqs.pop(row.seq, None)
    entries = [one for one in view.entries_of([*seqs][: 2 * at_most]) if one.project_id == row.project_id][:at_most]
    return [shown_memory(one) for one in view.rows_of(entries) if one.content.strip()]


def fitted_request(output: TaskRequest, max_bytes: int) -> TaskRequest:
    """Return the output with a body of at most `max_bytes`, if possible. First the context is cut, then the texts."""
    if len(output.body) <= max_bytes:
        return output
    request = EnrichmentRequest.model_validate_json(output.body)
    while len(body := request.model_dump_json(exclude_none=True).encode()) > max_bytes:
        smaller = _with_half_of_context(request) or _with_half_of_texts(request)
        if smaller is None:
            break
        request = smaller
    return replace(output, body=body)


def _with_half_of_context(request: EnrichmentRequest) -> EnrichmentRequest | None:
    """Return the request with half of its least important context; None without context."""
    for name in _CONTEXT:
        if context := getattr(request, name):
            return request.model_copy(update={name: context[: len(context) // 2]})
    if len(request.memories) > 1:
        return request.model_copy(update={"memories": request.memories[len(request.memories) // 2 :]})
    return None


def _with_half_of_texts(request: EnrichmentRequest) -> EnrichmentRequest | None:
    (memory,) = request.memories
    half = len(memory.content) // 2
    if half < _CHARACTERS_MIN:
        return None
    text = None if request.text is None else request.text[:half]
    summary = None if request.summary is None else request.summary[:half]
    cut = memory.model_copy(update={"content": memory.content[:half]})
    return request.model_copy(update={"memories": [cut], "text": text, "summary": summary})


def entities(view: View, row: MemoryRow) -> tuple[list[ShownEntity], bool]:
    """Return the existing entities that a memory's text may mean, and whether a new name may mean one of them.

    First come the entities that the text names. Then come entities whose name contains a new name of the text, or is
    part of a new name. A name is resolved only when it first appears, such as `Ana` if `Ana García` exists, because the
    result is in the graph for later texts."""
    keys = _entities_of(view, row.seq)[:_NAMED_MAX]
    mentions = {key: next((seq for seq in view.graph.members(key, 2) if seq != row.seq), None) for key in keys}
    new = [key for key, seq in mentions.items() if seq is None]
    others = dict.fromkeys(other for key in new for other in view.graph.similar_names(key))
    mentions |= {key: next(iter(view.graph.members(key, 1)), None) for key in [*others][:ENTITIES_MAX]}
    existing = [(key, seq) for key, seq in mentions.items() if seq is not None]
    shown_entities = [_shown_entity(view, key, seq) for key, seq in existing[:ENTITIES_MAX]]
    return [one for one in shown_entities if one is not None], bool(others)


def _entities_of(view: View, seq: int) -> list[str]:
    """Return the node keys of the entities linked to a memory."""
    links = view.graph.links(seq)
    return [key for key in ({} if links is None else links.links) if is_entity(NodeKey(key))]


def _shown_entity(view: View, key: str, mentioned_in: int) -> ShownEntity | None:
    """Return an entity with a sentence of a memory (`seq`) that names it; None if it is archived or invalid."""
    node = view.graph.node(NodeKey(key))
    if node is None or node.archived:
        return None
    kind, sentence = (node.properties or {}).get("type"), _sentence(view, mentioned_in, node.name)
    try:
        return ShownEntity(key=key, name=node.name, type=kind, urn=node.urn, told_by=sentence)
    except ValidationError:  # names in texts are not validated like names in events
        return None


def _sentence(view: View, seq: int, name: str) -> str | None:
    """Return the sentence of a memory that names an entity, or else its first sentence."""
    for row in view.rows_of(view.entries_of([seq])):
        found = sentences(row.content[:CONTEXT_CHARACTERS])
        naming = (one for one in found if name.casefold() in one.casefold())
        return next((one[:_SENTENCE_CHARACTERS] for one in (*naming, *found)), None)
    return None


def ended_episode(view: View, event: events.Event) -> EpisodeRow | None:
    """Return the episode that an event ended, either explicitly or by opening the session's next episode."""
    for session_id, (changed, *_) in view.changed_episodes.items():
        if isinstance(event, events.EpisodeEnd):
            return changed
        before = next(iter(view.episodes(session_id)[-1:]), None)
        is_opened = changed.number == view.newest and not changed.of_facts
        if is_opened and before is not None and before.last_ms < changed.start_ms:
            return None if before.ended_ms is not None or before.of_facts else before
    return None


def category_due(view: View, memory: RememberedMemory) -> str | None:
    """Return the category that a memory joined, if the category's summary is due: at each of `SUMMARY_SIZES`. Larger
    categories are not counted: there, one memory in 40 makes the summary due, by the hash of its id."""
    row = memory.row
    if row.category is None or (row.version and view.row(row.id, row.version - 1).category == row.category):
        return None
    largest = SUMMARY_SIZES[-1]
    members = view.graph.members(node_key("category", row.category), largest + 1)
    count = 1 + sum(seq != row.seq for seq in members)
    is_due = count in SUMMARY_SIZES or (count > largest and crc32(row.id.encode()) % largest == 0)
    return row.category if is_due else None


def _within_budget(rows: list[MemoryRow], characters: int) -> Iterator[ShownMemory]:
    """Yield memories up to a number of characters in all, and cut the last memory."""
    for row in rows:
        one = shown_memory(row, min(CONTEXT_CHARACTERS, characters))
        characters -= len(one.content)
        if one.content.strip():
            yield one
        if characters <= 0:
            return


SIMILAR_MAX = 10
COMPARED_MAX = 32  # memories compared by sketch
_ENTITIES, _NEWEST_MEMBERS = 8, 8  # compared entities, and the newest memories of each
_MEMBERS_MAX = 64  # the newest memories of an entity that are recognised as about it
_FACTS = 16  # the newest facts of a kind
_SPEAKER_STEMS = frozenset(stems("user assistant"))  # the names of speakers in facts
_SHARED_WORDS_MIN = 2  # of two messages of one author; one less for the same entity, and one less for facts
_SPELLING_COSINE_MIN = 0.3  # texts that share a word have spelling vectors with a larger cosine
_Pair = tuple[Entry, float | None]  # a memory and its similarity


def similar(view: View, memory: RememberedMemory, enrichment: EnrichmentTasks) -> list[ShownMemory]:
    """Return the memories that a new memory may agree with, refine or contradict.

    With semantic vectors, these are memories whose cosine is in the ambiguous range, the closest first; none while the
    new memory's vector is missing. Vectors of spellings are less reliable, so without semantic vectors these are
    memories that share a subject and further words. A subject is an entity, the user that facts are about, or the
    author. The author is the subject of all their messages, so two shared words are needed; one is enough for other
    subjects. Facts are short and need one word less. The order is by the number of shared words, then newest first."""
    if enrichment.by_meaning and memory.vectors is None:
        return []
    links = view.graph.links(memory.seq)
    sketch = b"" if links is None else links.sketch
    if enrichment.by_meaning and sketch and memory.vectors is not None:
        pairs = _by_meaning(view, memory.seq, memory.vectors, sketch, enrichment)
    else:
        pairs = _by_words(view, memory, sketch, _entities_of(view, memory.seq)[:_ENTITIES])
    current = [*islice((one for one in pairs if not view.graph.is_superseded(one[0].seq)), SIMILAR_MAX)]
    rows = zip(view.rows_of([entry for entry, _ in current]), current, strict=True)
    return [shown_memory(row, similarity=cosine) for row, (_, cosine) in rows if not _have_same_source(memory.row, row)]


def _have_same_source(one: MemoryRow, other: MemoryRow) -> bool:
    """Return whether one memory was derived from the other, or both from the same: these cannot contradict."""
    sources = [row.id if row.derived_from is None else row.derived_from["memory_id"] for row in (one, other)]
    return sources[0] == sources[1]


def _by_meaning(view: View, own: int, vectors: Vectors, sketch: bytes, enrichment: EnrichmentTasks) -> list[_Pair]:
    near = _near(view, own, sketch, enrichment.similarity_min)
    seqs, whole_texts = view.graph.hot_graph.memory_vectors(near, vectors.model, len(vectors.whole))
    rounded = zip((round(weight, DIGITS) for weight in cosines(vectors.whole, whole_texts)), seqs, strict=True)
    found = [one for one in rounded if enrichment.similarity_min <= one[0] <= enrichment.similarity_max]
    found.sort(reverse=True)
    entries = {entry.seq: entry for entry in view.entries_of([seq for _, seq in found])}
    return [(entries[seq], weight) for weight, seq in found if seq in entries]


def _by_words(view: View, memory: RememberedMemory, sketch: bytes, about: list[str]) -> list[_Pair]:
    own, members = view.entry(memory.seq), view.graph.members
    near = _near(view, memory.seq, sketch, _SPELLING_COSINE_MIN) if sketch else []
    by_entity = [members(key, _MEMBERS_MAX) for key in about]
    of_entity, newest = ({seq for each in by_entity for seq in each[:most]} for most in (_MEMBERS_MAX, _NEWEST_MEMBERS))
    facts = members(node_key("type", own.kind), _FACTS) if own.role is None else []
    stemmed = {*own.stems.split()}
    words = stemmed - _SPEAKER_STEMS - {stem for key in about for stem in stems(key.partition(":")[2])}
    found = []
    for entry in view.entries_of(sorted({*near, *newest, *facts} - {memory.seq})):
        theirs = {*entry.stems.split()}
        is_about = entry.seq in of_entity or not _SPEAKER_STEMS.isdisjoint(stemmed & theirs)
        shared = len(words & theirs)
        are_facts = own.role is entry.role is None
        if shared >= _SHARED_WORDS_MIN - is_about - are_facts and (is_about or entry.author == own.author):
            found.append((shared, entry))
    found.sort(key=lambda one: (-one[0], -one[1].seq))
    return [(entry, None) for _, entry in found]


def _near(view: View, own: int, sketch: bytes, cosine: float) -> list[int]:
    found = view.graph.hot_graph.window(view.newest).near(sketch, max_differing_bits(cosine), view.newest)
    return [seq for seq in found[: COMPARED_MAX + 1] if seq != own][:COMPARED_MAX]


def requests(
    view: View, write: Write, enrichment: EnrichmentTasks, decisions: ControlHistory
) -> list[tuple[int, EnrichmentRequest]]:
    """Return the requests of an applied event, each with its number among the event's outputs."""
    memory = next((one for one in view.touched if isinstance(one, RememberedMemory)), None)
    by_number = {
        MEMORY: None if memory is None else _of_memory(view, write, memory, enrichment, decisions),
        EPISODE: _of_episode(view, write) if enrichment.summaries else None,
        CATEGORY: _of_category(view, write, memory) if enrichment.summaries and memory is not None else None,
    }
    return [(number, request) for number, request in by_number.items() if request is not None]


def _of_memory(
    view: View, write: Write, memory: RememberedMemory, enrichment: EnrichmentTasks, decisions: ControlHistory
) -> EnrichmentRequest | None:
    event, row = write.event, memory.row
    is_embedded = isinstance(event, events.MemoryEmbedding)
    if not row.content.strip() or not (is_embedded or _has_new_text(view, event, row)):
        return None
    is_original = not is_embedded and row.derived_from is None  # only original texts are analysed
    similar_memories = similar(view, memory, enrichment) if enrichment.relationships else []
    needs_entities = is_original and (enrichment.relationships or enrichment.facts)
    existing, in_doubt = entities(view, row) if needs_entities else ([], False)
    # A text of a system or tool counts only if it has a named author.
    is_spoken = row.role in _SPEAKER_ROLES or (row.role is not None and row.name is not None)
    is_due: dict[Task, bool] = {
        "embed": enrichment.embed and memory.vectors is None,
        "classify": bool(similar_memories),
        "extract": is_original and enrichment.relationships and len(row.content) >= enrichment.min_chars,
        "facts": is_original and enrichment.facts and is_spoken,
        "resolve": enrichment.relationships and in_doubt,
    }
    tasks = [task for task, due in is_due.items() if due]
    if is_original and enrichment.categories and row.category is None:
        tasks += ["categorise"] if categories(decisions, event.tenant_id, write.record.append_ms) else []
    if not tasks:
        return None
    needs_context = not _CONTEXT_TASKS.isdisjoint(tasks)
    return EnrichmentRequest.model_construct(
        **_scope(write),
        tasks=tasks,
        memories=[shown_memory(row, TEXT_CHARACTERS)],
        similar=similar_memories,
        recent=recent(view, row, enrichment.recent) if needs_context else [],
        entities=existing if needs_context else [],
        text=embedding_input(row.author, row.content) if is_due["embed"] else None,
    )


def _of_episode(view: View, write: Write) -> EnrichmentRequest | None:
    """Return the request for an ended episode, with its newest messages in order; None if there are too few."""
    if (episode := ended_episode(view, write.event)) is None:
        return None
    seqs = view.graph.members(node_key(EPISODE_KIND, episode.id), 2 * EPISODE_MESSAGES)
    spoken = [entry for entry in view.entries_of(seqs) if entry.role is not None]
    spoken.sort(key=lambda entry: (-entry.created_ms, -entry.seq))
    messages = [*_within_budget(view.rows_of(spoken[:EPISODE_MESSAGES]), EPISODE_CHARACTERS)]
    if len(messages) < EPISODE_MESSAGES_MIN:
        return None
    scope = _scope(write) | {"session_id": episode.session_id, "episode_id": episode.id}
    return EnrichmentRequest.model_construct(**scope, tasks=["summarise_episode"], memories=messages[::-1])


def _of_category(view: View, write: Write, memory: RememberedMemory) -> EnrichmentRequest | None:
    """Return the request for a category whose summary is due, with its newest memories, newest first."""
    if (category := category_due(view, memory)) is None:
        return None
    members = view.graph.members(node_key("category", category), CATEGORY_MEMORIES)
    seqs = [seq for seq in members if seq != memory.seq]
    rows = [memory.row, *view.rows_of(view.entries_of(seqs[: CATEGORY_MEMORIES - 1]))]
    memories = [shown_memory(row) for row in rows if row.content.strip()]
    if not memories:
        return None
    scope = _scope(write) | {"category": category, "summary": view.summary(category)}
    return EnrichmentRequest.model_construct(**scope, tasks=["summarise_category"], memories=memories)


def _has_new_text(view: View, event: events.Event, row: MemoryRow) -> bool:
    if isinstance(event, events.Message | events.MemoryAdd):
        return True
    return isinstance(event, events.MemoryUpdate) and view.row(row.id, row.version - 1).content != row.content


def _scope(write: Write) -> dict[str, Any]:
    """Return the owner, source and time of a request. The tenant's settings as of that time apply."""
    event = write.event
    return {
        "type": "enrichment.request",
        "tenant_id": event.tenant_id,
        "environment": event.environment,
        "user_id": event.user_id,
        "project_id": event.project_id,
        "session_id": event.session_id,
        "timestamp": write.record.append_ms,
        "source": str(write.record.position),
    }
