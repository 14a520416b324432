"""The logs whose records a state directory holds, and whether it may hold only some of the partitions."""

from pathlib import Path

from recallflow.state.files import read_checked, write_checked

CALLERS_LOG, ONE_RUNS_LOG = "local", "lines"  # as positions name what callers put, and the lines of one command
TOPICS = "topics.json"  # the registry of input topics, written before the first record
MOVED = "moved.json"  # in directories between which partitions were moved


def reads_topics(state_dir: Path) -> bool:
    """Return whether a directory was ever given topics to read."""
    return (state_dir / TOPICS).exists()


def read_logs(state_dir: Path) -> dict[str, str]:
    """Return the id of each topic that a directory reads, by name. Empty where it was never given topics to read."""
    if not reads_topics(state_dir):
        return {}
    known = read_checked(state_dir / TOPICS)
    return {topic: known["ids"].get(topic, "") for topic in known["read"].values()}


def has_moved(state_dir: Path) -> bool:
    """Return whether partitions of a directory were moved to or from another."""
    return (state_dir / MOVED).exists()


def note_move(source: Path, target: Path) -> None:
    """Record in both directories that partitions were moved, and copy the source's topics to the target."""
    for path in (source, target):
        write_checked(path / MOVED, {})
    if reads_topics(source) and not reads_topics(target):
        write_checked(target / TOPICS, read_checked(source / TOPICS))
