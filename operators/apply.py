"""The application of memory events to the state: a pure function of stored data, event and settings."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import orjson

from recallflow import events
from recallflow.caching import BoundedCache
from recallflow.errors import FieldProblem, InvalidRecord
from recallflow.events import Event, MemoryAdd, Message
from recallflow.fields import Model
from recallflow.language.analysis import analyse, stems
from recallflow.limits import READ_CHARACTERS
from recallflow.operators import derived
from recallflow.operators.episodes import end, join_or_open
from recallflow.operators.events import Analysis, Write, event_time, key_of
from recallflow.operators.graph.graph_events import SYNC_FAILED, archive, check_relations, relate, update_graph
from recallflow.operators.large import Work, memories_to_forget
from recallflow.operators.prepare import entry_stems, flags_of, passages
from recallflow.operators.quotas import UserLimits
from recallflow.operators.view import View
from recallflow.outputs import ReceiptOutput
from recallflow.responses import Outcome, Receipt, RefusalOutcome
from recallflow.state.arrays import unit
from recallflow.state.labels import metadata_labels
from recallflow.state.rows import Entry, MemoryHead, MemoryRow, Vectors, language_in
from recallflow.state.tokens import NO_TOKENS

DEFAULT_KIND = "fact"
MESSAGE_KIND = "message"
# Event field → column, if the names differ.
_COLUMNS = {"valid_from": "valid_from_ms", "valid_to": "valid_to_ms", "expires_at": "expires_ms"}
# Values of columns whose field is null in an event; None for others.
_DEFAULTS: dict[str, Any] = {
    "kind": DEFAULT_KIND,
    "layer": "long_term",
    "tags": [],
    "topics": [],
    "entities": [],
    "relations": [],
    "importance": 0.5,
    "confidence": 1.0,
}
# A cache, because few distinct authors occur often.
_author_stems: BoundedCache[str, str] = BoundedCache(lambda author: " ".join(stems(author)), 1024 * 1024)


def new_row(view: View, event: Message | MemoryAdd, memory_id: str, created: tuple[int, bool]) -> MemoryRow:
    created_ms, created_logged = created
    row = MemoryRow(
        id=memory_id,
        seq=view.next_seq(),
        version=0,
        change=view.change,
        content=event.text() if isinstance(event, Message) else event.content,
        created_ms=created_ms,
        ingested_ms=view.ingested_ms,
        created_logged=created_logged,
        ingested_logged=view.ingested_logged,
        kind=MESSAGE_KIND if isinstance(event, Message) else DEFAULT_KIND,
        role=event.role if isinstance(event, Message) else None,
        name=event.name,
        session_id=event.session_id,
        project_id=event.project_id,
        metadata=event.metadata,
    )
    if isinstance(event, Message):
        return row
    provenance = None if event.derived_from is None else derived.provenance(view, event.derived_from)
    return replace(row, derived_from=provenance, **dict(_columns(event)))


def changed_columns(before: MemoryRow, event: events.MemoryUpdate) -> dict[str, Any]:
    """Return the columns that an update changes. Derived values only fill empty columns; `filled` lists these columns,
    because they are cleared when the text changes."""
    columns = dict(_columns(event))
    if event.derived_from is not None:
        columns = {name: value for name, value in columns.items() if getattr(before, name) in (None, [])}
        return columns | {"filled": [*before.filled, *columns]} if columns else {}
    if before.role is not None and "kind" in columns and event.kind is None:
        columns["kind"] = MESSAGE_KIND  # the default of a message
    filled = [name for name in before.filled if name not in columns]
    if event.content not in (None, before.content):
        columns |= {name: [] if isinstance(getattr(before, name), list) else None for name in filled}
        filled = []
    return columns | {"filled": filled}


def _columns(event: MemoryAdd | events.MemoryUpdate) -> Iterator[tuple[str, Any]]:
    """Yield row columns of the fields that an event names. Null resets a field to its default."""
    for field, value in event.fields_set().items():
        if field == "embedding":
            continue
        if field in ("entities", "relations") and value is not None:
            value = [item.model_dump(exclude_none=True) for item in value]
        yield _COLUMNS.get(field, field), _DEFAULTS.get(field) if value is None else value


def entry_of(row: MemoryRow, episode: int, analysis: Analysis) -> Entry:
    return Entry(  # positional, because keywords take twice the time
        row.seq,
        row.version,
        row.change,
        row.id,
        row.created_ms,
        row.created_logged,
        row.ingested_ms,
        episode,
        analysis.flags,
        row.author,
        _author_stems[row.author or ""],
        analysis.stems,
        row.kind,
        row.layer,
        row.role,
        row.session_id,
        row.project_id,
        row.category,
        row.tags,
        row.importance,
        row.confidence,
        row.valid_from_ms,
        row.valid_to_ms,
        row.expires_ms,
        metadata_labels(row.metadata),
        row.edited_ms,
    )


def vectors_of(analysis: Analysis, model: str) -> Vectors | None:
    """Return the vectors of a text; None if the model gave none."""
    vectors = analysis.vectors
    return None if vectors is None else Vectors(model, vectors, analysis.tokens, analysis.sizes)


# Fields that are not part of an event's content. A retrying producer may change the timestamp.
_NOT_CONTENT = frozenset({"id", "receipt", "schema_version", "timestamp", "embedding"})
_READ_IN_PART = f"only the first {READ_CHARACTERS:,} characters are searchable: split the text into several memories"
_REFUSAL_OUTCOMES = get_args(RefusalOutcome)
_EMBEDDING_FAILED = (
    "the memory is stored, and found by its words only: the embedding service returned no vector ({}). Send a vector "
    "as memory.embedding, or replay into a new directory"
)
_GRAPH_FAILED = "the memory is stored, but its graph update failed; it is retried with the next event of this user"


def apply(view: View, write: Write, work: Work | None = None) -> list[ReceiptOutput]:
    """Apply one event through its view. `work` is the part of a large event that was already applied in steps. Return a
    receipt if the event asks for one, or if a part of it failed. Raise InvalidRecord for an event that cannot be
    applied; then the caller drops the view, and nothing has changed."""
    event, position = write.event, write.record.position
    view.limits = UserLimits.of(view.rules.decisions, write.owner.tenant_id, write.record)
    digest = view.digest(_content(event))
    outcome: Outcome
    if isinstance(event, Message | MemoryAdd):
        outcome = _create(view, write, event, event.id or str(write.record.original_position), digest)
    else:
        outcome = _apply_once(view, write, digest, work)
    view.refusal_outcome = outcome if outcome in _REFUSAL_OUTCOMES else None
    failed_part: tuple[str, str] | None = None
    synced = update_graph(view, write.analysis, position)
    if not synced or (work is not None and not work.synced):
        failed_part = SYNC_FAILED, _GRAPH_FAILED
    elif write.analysis is not None and outcome in ("created", "updated"):
        if (code := write.analysis.embedding_failure) is not None:
            failed_part = "EMBEDDING_FAILED", _EMBEDDING_FAILED.format(code)
        elif write.analysis.is_truncated:
            failed_part = "READ_IN_PART", _READ_IN_PART
    return receipts(write, outcome, failed_part)


def receipts(write: Write, outcome: Outcome, failed_part: tuple[str, str] | None = None) -> list[ReceiptOutput]:
    """Return the receipt of an event that asks for one, or whose part failed (`failed_part`: code and detail)."""
    event = write.event
    if failed_part is None and not event.receipt:
        return []
    position, (code, detail) = str(write.record.original_position), failed_part or (None, None)
    memory_id: str | None = None
    if isinstance(event, Message | MemoryAdd):
        memory_id = event.id or position
    elif isinstance(event, events.MemoryUpdate | events.MemoryForget | events.MemoryFeedback):
        memory_id = event.memory_id
    receipt = Receipt(
        id=event.id or position, position=position, outcome=outcome, memory_id=memory_id, code=code, detail=detail
    )
    if outcome == "erased" and isinstance(event, events.UserErase):
        receipt = receipt.model_copy(update={"purged": False})
    return [ReceiptOutput(write.record.position, 0, key_of(write), receipt.model_dump_json().encode())]


def _create(view: View, write: Write, event: Message | MemoryAdd, memory_id: str, digest: str) -> Outcome:
    existing = view.current(memory_id)
    if existing is not None:
        return _repeated_outcome(existing.digest, digest)
    if not derived.has_unchanged_sources(view, event):
        return "outdated"
    if not derived.has_room(view, event):
        return "too_many"
    row = new_row(view, event, memory_id, event_time(write))
    check_relations(row)
    view.limits.raise_if_full(view.counts, row.content)
    derived.link(view, row)
    analysis = _in_own_language(view, write.analysis or Analysis("", 0, None), row.content)
    episode = -1  # a fact without a session has no episode
    if isinstance(event, Message) or event.session_id is not None:
        joined = join_or_open(view.episodes(row.session_id), view.owner, row, view.rules.episode_gap_ms)
        episode = joined.episode.number
        if joined.changed:
            view.grow_episodes(row.session_id, joined.changed)
    view.put(row, entry_of(row, episode, analysis), vectors_of(analysis, view.rules.model), digest)
    return "created"


def _apply_once(view: View, write: Write, digest: str, work: Work | None) -> Outcome:
    """Apply an event that creates no memory. An event with an id takes effect only once."""
    event = write.event
    if event.id is not None and (applied_digest := view.applied_digest(event.id)) is not None:
        return _repeated_outcome(applied_digest, digest)
    outcome = _apply_change(view, write, work)
    if event.id is not None and outcome not in _REFUSAL_OUTCOMES:
        view.mark_applied(event.id, digest)
    return outcome


def _apply_change(view: View, write: Write, work: Work | None) -> Outcome:
    if work is not None:
        return "forgotten" if work.found else "unchanged"
    event = write.event
    if not derived.has_unchanged_sources(view, event):
        return "outdated"
    match event:
        case events.MemoryUpdate():
            return _update(view, event, write.analysis, event_time(write))
        case events.MemoryEmbedding():
            return _embed(view, event)
        case events.MemoryForget():
            entries = memories_to_forget(view, event)
            for entry in entries:
                view.forget(entry)
            return "forgotten" if entries else "unchanged"
        case events.MemoryFeedback():
            view.add_feedback(_changeable_memory(view, event.memory_id), event.useful)
            return "updated"
        case events.EpisodeEnd():
            at_ms, _ = event_time(write)
            ended = end(view.episodes(event.session_id), at_ms, view.rules.episode_gap_ms)
            if ended is None:
                return "unchanged"
            view.end_episode(event.session_id, at_ms, ended)
            return "ended"
        case events.GraphEdges():
            return _relate(view, event, event_time(write)[0])
        case events.GraphArchive():
            return "updated" if archive(view.graph, event) else "unchanged"
        case events.CategorySummary():
            sources = view.seqs(one.memory_id for one in derived.sources_of(event))
            view.put_summary(event.category, event.summary, sources)
            return "updated"
        case events.EpisodeSummary():
            return "updated" if derived.put_episode_summary(view, event) else "outdated"
    raise TypeError(f"{event.type} is not applied here")


def _update(view: View, event: events.MemoryUpdate, analysis: Analysis | None, edited: tuple[int, bool]) -> Outcome:
    current = _changeable_memory(view, event.memory_id)
    before = view.row(event.memory_id, current.version)
    after = replace(before, **changed_columns(before, event))
    if after == before:
        return "unchanged"
    if after.valid_from_ms is not None and after.valid_to_ms is not None and after.valid_to_ms < after.valid_from_ms:
        raise InvalidRecord.of("invalid_event", "before valid_from", "valid_to")
    check_relations(after)
    view.limits.check_text(view.counts, after.content, before.content)
    after = view.next_version(after, edited)
    entry = view.entry(current.seq)
    content_changed = after.content != before.content or event.embedding is not None
    if analysis is not None and content_changed:
        analysis = _in_own_language(view, analysis, after.content)
        vectors = vectors_of(analysis, view.rules.model)
    else:
        analysis, content_changed = Analysis(entry.stems, entry.flags, None), False
        vectors = view.vectors(current.seq)
    view.put(after, entry_of(after, entry.episode, analysis), vectors, current.digest, content_changed)
    if after.content != before.content:
        derived.withdraw(view, current.seq, edited)
    return "updated"


def _embed(view: View, event: events.MemoryEmbedding) -> Outcome:
    """Set the vector of a memory. Token vectors that the same model has computed are kept."""
    if event.model != view.rules.model:
        return "other_model"
    current = _changeable_memory(view, event.memory_id)
    before = view.vectors(current.seq)
    tokens = before.tokens if before is not None and before.model == view.rules.model else NO_TOKENS
    vectors = Vectors(view.rules.model, unit(event.embedding), tokens)
    if before is not None and before.encode() == vectors.encode():
        return "unchanged"
    view.put_vectors(view.row(event.memory_id, current.version), vectors)
    return "updated"


def _relate(view: View, event: events.GraphEdges, stated_ms: int) -> Outcome:
    try:
        return "updated" if relate(view.graph, event, stated_ms) else "unchanged"
    except InvalidRecord as error:
        if event.derived_from is None or error.code != "not_found":
            raise
        return "outdated"  # an end of an edge was removed after the model had read it


def _in_own_language(view: View, analysis: Analysis, text: str) -> Analysis:
    """Return an analysis in the text's language, and store this language as the owner's. If the language is uncertain,
    analyse the text again in the owner's language."""
    if analysis.is_language_certain:
        view.language = language_in(analysis.flags)
    elif view.language and analysis.stems:
        text = text[:READ_CHARACTERS]
        reading = analyse(text, view.language)
        return analysis._replace(stems=entry_stems(text, passages(text), reading), flags=flags_of(text, reading))
    return analysis


def _changeable_memory(view: View, memory_id: str) -> MemoryHead:
    """Return a current memory. Raise InvalidRecord for an unknown, forgotten or forbidden one."""
    current = view.changeable(memory_id)
    if current is None:
        problem = "was forgotten" if view.was_forgotten(memory_id) else "no memory has this id"
        raise InvalidRecord.of("not_found", problem, "memory_id")
    return current


def _repeated_outcome(applied_digest: str, digest: str) -> Outcome:
    """Return the outcome of an event whose id was used before. Raise InvalidRecord if its content differs."""
    if applied_digest == digest:
        return "duplicate"
    raise InvalidRecord.of("id_conflict", "the id was used before for other content: use a new id", "id")


def _content(event: Event) -> bytes:
    """Return canonical bytes of an event's content. Events with the same id and other bytes are in conflict."""
    fields = event.__dict__ | (event.model_extra or {})  # avoids a deep copy, as most events have no nested fields
    omitted = _NOT_CONTENT - {"embedding"} if isinstance(event, events.MemoryEmbedding) else _NOT_CONTENT
    content = {field: value for field, value in fields.items() if value is not None and field not in omitted}
    try:
        return orjson.dumps(content, _as_dict, orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        raise InvalidRecord("invalid_event", [*_unstorable(content)]) from None


def _as_dict(nested: Model) -> dict[str, Any]:
    return nested.model_dump(exclude_none=True)


def _unstorable(content: dict[str, Any]) -> Iterator[FieldProblem]:
    for field, value in content.items():
        try:
            orjson.dumps(value, _as_dict)
        except orjson.JSONEncodeError as error:
            yield FieldProblem(field, f"cannot be stored: {error}")
