"""The list of a user's memories in pages (`memories.list`)."""

from pydantic_core import to_json

from recallflow.fields import format_time
from recallflow.graphs import Mark
from recallflow.operators.graph.reader import memory_marks, superseded
from recallflow.operators.pages import Room, cursor, newest_first, read, there
from recallflow.operators.recall.filters import Filtering, Linked
from recallflow.operators.recall.moment import Moment
from recallflow.operators.redaction import RowsReader, warn
from recallflow.queries import Filters, MemoriesList, MemoryCursor
from recallflow.responses import ListedMemory, MemoryPage, Response
from recallflow.state.graph import OwnerGraph
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow


def memories(
    hot: HotOwner, index: OwnerIndex, graph: OwnerGraph, rows: RowsReader, query: MemoriesList, moment: Moment
) -> Response:
    """Return a page, as of the moment. `rows` reads by slot. The response has no id yet."""
    linked = Linked(graph, index, moment)
    filtering = Filtering(index, linked)
    allowed = there(index, moment) & filtering.within(query.filters)
    if query.project_id is not None:
        allowed &= filtering.within(Filters(project_id=query.project_id))
    after = None if query.after is None else MemoryCursor.parse(query.after)
    places = newest_first(hot, index, allowed, after, query.limit + 1).tolist()
    hidden = superseded(graph, moment.now_ms)
    listed: list[ListedMemory] = []
    shown: list[MemoryRow] = []
    room, last = Room(), None
    for place, row in read(index, places[: query.limit], rows):
        if row is not None:
            one = _listed(index, place, row, memory_marks(graph, row, moment.now_ms, hidden))
            if not room.take(len(to_json(one))):
                break
            listed.append(one)
            shown.append(row)
        last = place
    page = MemoryPage(
        memories=listed,
        total=int(allowed.sum()),
        after=str(cursor(index, last)) if last is not None and last != places[-1] else None,
    )
    response = Response(query_id="", status="ok", memory_page=page)
    warnings = [*linked.warnings(), *warn(shown)]
    return response.warned(warnings) if warnings else response


def _listed(index: OwnerIndex, place: int, row: MemoryRow, marks: list[Mark]) -> ListedMemory:
    episode = index.episode(int(index.conversation.facts["episode"][place]))
    return ListedMemory(
        id=row.id,
        version=row.version,
        content=row.content,
        summary=row.summary,
        kind=row.kind,
        layer=row.layer,
        category=row.category,
        role=row.role,
        name=row.name,
        tags=row.tags,
        topics=row.topics,
        entities=row.entities,
        session_id=row.session_id,
        project_id=row.project_id,
        episode_id=None if episode is None else episode.id,
        created_at=format_time(row.created_ms),
        updated_at=format_time(row.updated_ms),
        importance=row.importance,
        confidence=row.confidence,
        metadata=row.metadata,
        derived_from=row.derived_from,
        marks=marks,
    )
