"""The command line: `recallflow …`. Exit codes: 0, 1 failure, 2 usage."""

import sys
from collections.abc import Sequence

from recallflow.cli.leaving import leave, stop_while_starting


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Where it is what this process is there for (no `arguments`), `run`
    ends the process."""
    runs = arguments is None and next((word for word in sys.argv[1:] if not word.startswith("-")), "") == "run"
    if runs:
        stop_while_starting()
    from recallflow.cli.commands import perform  # seconds on a busy machine, in which a signal has to be heard

    code = perform(arguments)
    if runs:
        leave(code)
    return code
