"""Pages of the reference, generated from the code when the site is built."""

from collections.abc import Callable, Mapping

from tools.reference import cli, decisions, errors, events, limits, metrics, python, settings

# Path below docs/ → function that returns the page.
PAGES: Mapping[str, Callable[[], str]] = {
    "reference/events.md": events.memory_events,
    "reference/queries.md": events.queries,
    "reference/responses.md": events.responses,
    "reference/limits.md": limits.page,
    "reference/cli.md": cli.page,
    "reference/settings.md": settings.page,
    "reference/metrics.md": metrics.page,
    "reference/errors.md": errors.page,
    "reference/python.md": python.page,
    "internals/decisions/index.md": decisions.page,
}
