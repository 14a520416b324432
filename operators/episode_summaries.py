"""Summaries of episodes, valid as long as the episode's messages are unchanged."""

from itertools import takewhile

from recallflow.errors import DecryptionFailed, FieldProblem, InvalidRecord
from recallflow.events import EpisodeSummary
from recallflow.operators.derived import sources_of
from recallflow.operators.view import View
from recallflow.state.graph_codec import EPISODE_KIND, node_key
from recallflow.state.hot_owner import HotOwner
from recallflow.state.rows import EpisodeRow

LATER_MEMBERS = 1_000  # members that are searched for messages newer than a summary


def known_summary(hot: HotOwner, episode: EpisodeRow, by_ms: int | None = None) -> str | None:
    """Return the summary of an episode, if there is one and it covers no message after a time."""
    if not episode.summarised or (by_ms is not None and by_ms < episode.last_ms):
        return None
    try:
        return hot.episode_summary(episode.number)
    except DecryptionFailed:
        return None


def keep(view: View, event: EpisodeSummary) -> bool:
    """Store the summary of an episode. Return whether it is valid: its sources are all in the episode, and include the
    last message. Raise InvalidRecord for an unknown episode."""
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
