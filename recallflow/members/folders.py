"""Where members keep their state: each a state directory of its own, below the one that was given."""

import re
from pathlib import Path

from recallflow.errors import UsageError
from recallflow.state.directory import DESCRIPTION

_NAME = re.compile(r"member-\d{2,}")


def member_name(number: int) -> str:
    """How a member is called: in the log, in metrics, and as a folder."""
    return f"member-{number:02d}"


def member_folders(state_dir: Path) -> list[Path]:
    """Those that were filled."""
    filled = (one.parent for one in state_dir.glob(f"*/{DESCRIPTION}"))
    return sorted(folder for folder in filled if _NAME.fullmatch(folder.name))


def check_for_one(state_dir: Path) -> None:
    """Raises UsageError where members share the folder: one process would begin a new state beside theirs."""
    if folders := member_folders(state_dir):
        raise UsageError(
            f"{state_dir} holds the state of {len(folders)} members ({folders[0].name}, …): give --processes "
            f"{max(2, len(folders))}, or make one directory of theirs (recallflow state merge)"
        )


def check_for_members(state_dir: Path) -> None:
    """Raises UsageError where the folder is the state directory of one process: members would begin without it."""
    if (state_dir / DESCRIPTION).exists():
        raise UsageError(
            f"{state_dir} holds the state of one process: give --processes 1, or spread it over members' directories "
            "(recallflow state split)"
        )


def state_directories(state_dir: Path, count: int) -> list[Path]:
    """Return the state directories that so many members open below a folder; of one process it is the folder itself.
    Raises UsageError where the folder holds the state of another number of processes."""
    if count == 1:
        check_for_one(state_dir)
        return [state_dir]
    check_for_members(state_dir)
    return [state_dir / member_name(number) for number in range(count)]
