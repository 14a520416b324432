"""Whose records a state directory holds: of which logs nobody needs to know how far they are read, who keeps it of the
others, and whether the directory may have only some of the partitions."""

from pathlib import Path

from recallflow.state.files import read_checked, write_checked
from recallflow.state.partition import Partition

CALLERS_LOG, ONE_RUNS_LOG = "local", "lines"  # as positions name what callers put, and the lines of one command
TOPICS = "topics.json"  # what a state directory knows of the topics that it reads, from before the first record on
MOVED = "moved.json"  # in directories between which partitions were moved


def reads_topics(state_dir: Path) -> bool:
    """Whether a directory was ever given topics to read."""
    return (state_dir / TOPICS).exists()


def read_logs(state_dir: Path) -> dict[str, str]:
    """Return the id of each topic that a directory reads, by name. Empty where it was never given topics to read."""
    if not reads_topics(state_dir):
        return {}
    known = read_checked(state_dir / TOPICS)
    return {topic: known["ids"].get(topic, "") for topic in known["read"].values()}


def has_moved(state_dir: Path) -> bool:
    """Whether partitions of a directory were moved to another, or came from one."""
    return (state_dir / MOVED).exists()


def note_move(source: Path, target: Path) -> None:
    """Has both directories say that partitions of one are in the other, and the target know the source's topics."""
    for path in (source, target):
        write_checked(path / MOVED, {})
    if reads_topics(source) and not reads_topics(target):
        write_checked(target / TOPICS, read_checked(source / TOPICS))


def needs_store(partition: Partition) -> bool:
    """Whether only a recovery store keeps how far a log is read. What callers put, and a command's lines, was through
    when they ended; `run` keeps its place in the group, and in the partition."""
    through = {f"{topic}:0" for topic in (CALLERS_LOG, ONE_RUNS_LOG)}
    by_run = partition.place is not None or reads_topics(partition.path.parent)
    return not by_run and bool(partition.applied.keys() - through)
