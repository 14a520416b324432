"""What commands have in common that run a flow until SIGTERM."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from recallflow.cli.options import config_and_origins

if TYPE_CHECKING:
    from recallflow.flows.config import Config


def run_until_stopped(
    options: argparse.Namespace,
    run: "Callable[[Config], int | None]",
    check: "Callable[[Config], None]" = lambda _: None,
) -> int:
    """Runs a flow with the chosen settings, or prints them, once `check` found nothing wrong. Returns the exit code,
    which is 0 where `run` names none."""
    from recallflow.cli.log import set_up
    from recallflow.cli.tracing import exported_spans
    from recallflow.flows.config import printed

    set_up(getattr(options, "run.log_format") or "text")  # what is wrong with the settings is logged as well
    chosen, origins = config_and_origins(options)
    if options.print_config:
        check(chosen)
        print(printed(chosen, origins))
        return 0
    set_up(chosen.run.log_format)
    with exported_spans(options.command):
        return run(chosen) or 0
