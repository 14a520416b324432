"""Command line: `recallflow …`. Exit codes: 0, 1 failure, 2 usage, 130 Ctrl-C, 141 output pipe closed."""

import sys
from collections.abc import Sequence

from recallflow.process import end_on_signals, end_process, end_with_supervisor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code. In a shell, `run`, `enrich` and `serve` end the process."""
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    ends_process = arguments is None and command in ("run", "enrich", "serve")
    if ends_process:
        end_on_signals()
        end_with_supervisor()
    try:
        from recallflow.cli.commands import perform  # slow, so the handlers of signals come first

        code = perform(arguments)
    except KeyboardInterrupt:
        code = 130
    if ends_process:
        end_process(code)
    return code
