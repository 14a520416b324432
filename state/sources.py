"""The logs of which nobody needs to know how far they are read, and who keeps it of the others."""

from recallflow.state.partition import Partition

CALLERS_LOG, ONE_RUNS_LOG = "local", "lines"  # as positions name what callers put, and the lines of one command


def needs_store(partition: Partition) -> bool:
    """Whether only a recovery store keeps how far a log is read. What callers put, and a command's lines, was through
    when they ended; `run` keeps its place in the partition."""
    through = {f"{topic}:0" for topic in (CALLERS_LOG, ONE_RUNS_LOG)}
    return partition.place is None and bool(partition.applied.keys() - through)
