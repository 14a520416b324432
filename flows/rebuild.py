"""`recallflow state rebuild`: from where the log has to be read again for what the state lost.

Bytewax's recovery store remembers how far each state partition was. Where the partition's folder is missing, or holds
less than that, what is missing is still in the log: `rewind.json` says from where the next run reads
again. Up to where it was, that changes the state and gives no outputs: those were sent long ago.
"""

from pathlib import Path

from recallflow.errors import StateError
from recallflow.flows.begin import Begin
from recallflow.flows.behind import Behind, behind
from recallflow.flows.recovery import FLOW_ID, committed
from recallflow.state.at_rest import UNENCRYPTED, AtRest
from recallflow.state.directory import REWIND, describe, hold
from recallflow.state.files import write_checked

SOURCE_STEP = f"{FLOW_ID}.records"


def rebuild(state_dir: Path, at_rest: AtRest = UNENCRYPTED) -> tuple[list[Behind], dict[str, int]]:
    """Writes down from where `recallflow run` has to read each source again; returns why, and the offsets.

    Where nothing is behind, nothing has to be read again, also where an earlier rebuild was killed in the middle: the
    source's place and the state partitions' positions come from the same epoch. An earlier rebuild's list is removed.
    """
    with hold(state_dir):
        began(state_dir)
        found = behind(state_dir, at_rest)
        offsets: dict[str, int] = {}  # the first that any state partition lacks
        for source, offset in sorted(pair for one in found for pair in one.first.items()):
            offsets.setdefault(source, offset)
        _check_sources(state_dir, offsets)
        if offsets:
            write_checked(state_dir / REWIND, offsets)
        else:
            (state_dir / REWIND).unlink(missing_ok=True)
        return found, offsets


def positions(state_dir: Path) -> dict[str, int]:
    """The next offset of each Kafka partition, as a resumed flow would read on."""
    parts = committed(state_dir, SOURCE_STEP).values()
    # A file's part remembers a number, a Kafka part a pair.
    return {source: place[0] for part in parts for source, place in part.items() if isinstance(place, tuple)}


def began(state_dir: Path) -> Begin:
    """Where a run began. Raises StateError where none ever did."""
    describe(state_dir)
    if (begin := Begin.read(state_dir)) is None:
        raise StateError(
            f"{state_dir} was not filled by recallflow run, so there is no topic to read again: restore a checkpoint, "
            "or replay the files into a new directory"
        )
    return begin


def _check_sources(state_dir: Path, offsets: dict[str, int]) -> None:
    """A directory may hold memories of files as well, and no run reads those again."""
    if strangers := sorted(offsets.keys() - positions(state_dir).keys()):
        raise StateError(
            f"{state_dir} lost memories of {', '.join(strangers)}, which recallflow run does not read: restore a "
            "checkpoint, or replay everything into a new directory"
        )
