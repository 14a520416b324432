"""Command line: `recallflow …`. Exit codes: 0, 1 failure, 2 usage, 130 Ctrl-C, 141 output pipe closed."""

import sys
from collections.abc import Sequence

from recallflow.process import end_on_signals, end_process, end_with_supervisor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code. In a shell, `run`, `enrich` and `serve` end the process."""
    named = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    runs = arguments is None and named in ("run", "enrich", "serve")
    if runs:
        end_on_signals()
        end_with_supervisor()
    try:
        from recallflow.cli.commands import perform  # a signal may come meanwhile

        code = perform(arguments)
    except KeyboardInterrupt:
        code = 130
    if runs:
        end_process(code)
    return code
