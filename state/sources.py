"""The logs of which nobody needs to know how far they are read, and who keeps it of the others."""

from pathlib import Path

from recallflow.state.partition import Partition

CALLERS_LOG, ONE_RUNS_LOG = "local", "lines"  # as positions name what callers put, and the lines of one command
TOPICS = "topics.json"  # what a state directory knows of the topics that it reads, from before the first record on


def reads_topics(state_dir: Path) -> bool:
    """Whether a directory was ever given topics to read."""
    return (state_dir / TOPICS).exists()


def needs_store(partition: Partition) -> bool:
    """Whether only a recovery store keeps how far a log is read. What callers put, and a command's lines, was through
    when they ended; `run` keeps its place in the group, and in the partition."""
    through = {f"{topic}:0" for topic in (CALLERS_LOG, ONE_RUNS_LOG)}
    by_run = partition.place is not None or reads_topics(partition.path.parent)
    return not by_run and bool(partition.applied.keys() - through)
