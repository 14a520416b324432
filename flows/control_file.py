"""What operators decided, in a file in place of the control topic."""

from pathlib import Path

from recallflow.decisions import History
from recallflow.errors import InvalidRecord, UsageError
from recallflow.parsing import parse_control


def read_control_file(path: Path | None) -> History:
    """The control events of a file, one a line; none without a file. Raises UsageError with line and field."""
    history = History()
    if path is None:
        return history
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"--control: cannot read {path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = parse_control(line)
        except InvalidRecord as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
        history.add(event.timestamp or 0, event)
    return history
