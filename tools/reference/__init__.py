"""The reference: pages made from the code when the site is built, so that they cannot say something else."""

from collections.abc import Callable, Mapping

from tools.reference import cli, decisions, errors, events, metrics, python, settings

# Path below docs/ → what makes the page.
PAGES: Mapping[str, Callable[[], str]] = {
    "reference/events.md": events.memory_events,
    "reference/queries.md": events.queries,
    "reference/responses.md": events.responses,
    "reference/cli.md": cli.page,
    "reference/settings.md": settings.page,
    "reference/metrics.md": metrics.page,
    "reference/errors.md": errors.page,
    "reference/python.md": python.page,
    "decisions/index.md": decisions.page,
}
