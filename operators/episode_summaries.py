"""Summaries that were told of episodes: kept as long as what was said in an episode is what it was then."""

from itertools import takewhile

from recallflow.errors import DecryptionFailed, FieldProblem, InvalidRecord
from recallflow.events import EpisodeSummary
from recallflow.operators.derived import sources_of
from recallflow.operators.view import View
from recallflow.state.graph_codec import EPISODE_KIND, node_key
from recallflow.state.hot_owner import HotOwner
from recallflow.state.rows import Episode

LATER_MEMBERS = 1_000  # that are looked through for a message which a summary does not know


def known_summary(hot: HotOwner, episode: Episode, by_ms: int | None = None) -> str | None:
    """The summary that was told of an episode, if one was, of nothing that was said after a time."""
    if not episode.summarised or (by_ms is not None and by_ms < episode.last_ms):
        return None
    try:
        return hot.episode_summary(episode.number)
    except DecryptionFailed:
        return None


def keep(view: View, event: EpisodeSummary) -> bool:
    """Keeps the summary of an episode. Returns whether it still fits: one that was made from memories is of an episode
    that they all are in, and of the last message that came. Raises InvalidRecord where nobody knows the episode."""
    sources = [view.entry(seq) for seq in view.seqs(one.memory_id for one in sources_of(event))]
    session_id = sources[0].session_id if sources else event.session_id
    episode = next((one for one in reversed(view.episodes(session_id)) if one.id == event.episode_id), None)
    if sources:
        if episode is None or any(view.episode_id(one.session_id, one.episode) != episode.id for one in sources):
            return False
        newest = max(one.seq for one in sources)
        members = view.graph.members(node_key(EPISODE_KIND, episode.id), LATER_MEMBERS)
        if any(view.entry(seq).role is not None for seq in takewhile(lambda seq: seq > newest, members)):
            return False
    elif episode is None:
        problem = "no episode of this session has this id: name the episode's session_id"
        raise InvalidRecord("not_found", [FieldProblem("episode_id", problem)])
    view.put_episode_summary(episode, event.summary)
    return True
