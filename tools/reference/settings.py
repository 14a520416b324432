"""All settings with default, environment variable and flag."""

import re
from functools import cache
from operator import attrgetter
from typing import Any

from recallflow.cli.commands import commands
from recallflow.flows.config import KEYS, SECTIONS, VARIABLES, Config
from tools.reference import markdown
from tools.reference.cli import walk
from tools.reference.markdown import code, prose, table

INTRODUCTION = (
    "From this page you can set every setting. A flag overrides the environment, the environment overrides the file "
    "(`--config FILE`), and the file overrides the default; [settings files](../how-to/settings.md) has an example. "
    "Options of librdkafka are in `[kafka.librdkafka]`, or in `RECALLFLOW_KAFKA_LIBRDKAFKA_…`."
)
HEADS = ("setting", "default", "flag", "environment")


def page() -> str:
    """Return the page of all settings."""
    whole = table(HEADS, [_row("state_dir")])
    return markdown.page(
        "Settings", INTRODUCTION, whole, *(_section(name, section) for name, section in SECTIONS.items())
    )


def _section(name: str, section: type[Any]) -> str:
    rows = [_row(key) for key in KEYS if key.startswith(f"{name}.")]
    return f"## {name}\n\n{prose(section)}\n\n{table(HEADS, rows)}"


def _row(key: str) -> tuple[str, str, str, str]:
    flag, meaning = _flags().get(key, ("", ""))
    variables = [variable for variable, named in VARIABLES.items() if named == key]
    name = code(key.rpartition(".")[2]) + (f": {meaning}" if meaning else "")
    return name, _default(key), code(flag) if flag else "", " ".join(map(code, variables))


def _default(key: str) -> str:
    value = attrgetter(key)(Config())
    if value in (None, (), ""):
        return "none"
    return code(str(value).lower() if isinstance(value, bool) else value)


@cache
def _flags() -> dict[str, tuple[str, str]]:
    """Return flag and help of each setting that a command has."""
    actions = [action for parser, _ in walk(commands()) for action in parser._actions if action.dest in KEYS]
    return {one.dest: (one.option_strings[0], re.sub(r" \(default: .*\)$", "", one.help or "")) for one in actions}
