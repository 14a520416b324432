"""The response field `episodes` of the mode `episode`."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from recallflow.fields import format_time
from recallflow.operators.derived import known_summary
from recallflow.operators.recall.moment import Moment
from recallflow.operators.recall.ranking_input import Ranking
from recallflow.operators.redaction import RowsReader
from recallflow.operators.summaries import Summaries
from recallflow.responses import RecalledEpisode, RecalledMemory
from recallflow.state.hot_owner import HotOwner
from recallflow.state.index import OwnerIndex


def listed(
    hot: HotOwner,
    index: OwnerIndex,
    moment: Moment,
    ranking: Ranking,
    memories: Sequence[RecalledMemory],
    rows: RowsReader,
) -> list[RecalledEpisode]:
    """Return the episodes of the ranked memories in the order of the answer. Memories without an episode are skipped.

    Args:
        memories: the memories of the answer.
        rows: reads rows by slot.
    """
    conversation, returned = index.conversation, Counter(memory.episode_id for memory in memories)
    relevance = dict[int, float]()
    for segment, value in zip(conversation.segment[ranking.places].tolist(), ranking.factors["relevance"], strict=True):
        relevance.setdefault(segment, float(value))
    found, summaries, facts = list[RecalledEpisode](), Summaries(index, rows, len(relevance)), conversation.facts
    for segment, value in relevance.items():
        members = np.arange(conversation.starts[segment], conversation.ends[segment])
        episode = index.episode(int(facts["episode"][members[0]]))
        if episode is None or not returned[episode.id]:
            continue
        found.append(
            RecalledEpisode(
                id=episode.id,
                session_id=episode.session_id,
                start=format_time(episode.start_ms),
                end=format_time(episode.last_ms),
                size=len(np.unique(facts["seq"][members])),
                summary=known_summary(hot, episode, moment.happened_by_ms) or summaries.of(members),
                relevance=round(value, 6),
                members_returned=returned[episode.id],
            )
        )
    return found
