"""Every setting with its default, its variable of the environment and its flag."""

import re
from functools import cache
from operator import attrgetter
from typing import Any

from recallflow.cli.commands import commands
from recallflow.flows.config import KEYS, SECTIONS, VARIABLES, Config
from tools.reference import markdown
from tools.reference.cli import walk
from tools.reference.markdown import code, prose, table

TOLD = (
    "A value comes from the first of these that names it: a flag, the environment, the file (`--config FILE`), the "
    "default. `recallflow run --print-config` shows what holds and where it was given; how to write the file is in "
    "[operations](../operations.md#settings). Options of librdkafka stand under `[kafka.librdkafka]`, or in "
    "`RECALLFLOW_KAFKA_LIBRDKAFKA_…`."
)
HEADS = ("setting", "default", "flag", "environment")


def page() -> str:
    """The page on all of them."""
    whole = table(HEADS, [_row("state_dir")])
    return markdown.page("Settings", TOLD, whole, *(_section(name, section) for name, section in SECTIONS.items()))


def _section(name: str, section: type[Any]) -> str:
    rows = [_row(key) for key in KEYS if key.startswith(f"{name}.")]
    return f"## {name}\n\n{prose(section)}\n\n{table(HEADS, rows)}"


def _row(key: str) -> tuple[str, str, str, str]:
    flag, told = _flags().get(key, ("", ""))
    variables = [variable for variable, named in VARIABLES.items() if named == key]
    name = code(key.rpartition(".")[2]) + (f": {told}" if told else "")
    return name, _default(key), code(flag) if flag else "", " ".join(map(code, variables))


def _default(key: str) -> str:
    value = attrgetter(key)(Config())
    if value in (None, (), ""):
        return "none"
    return code(str(value).lower() if isinstance(value, bool) else value)


@cache
def _flags() -> dict[str, tuple[str, str]]:
    """Key of a setting → its flag and help, as the commands have them."""
    actions = [action for parser, _ in walk(commands()) for action in parser._actions if action.dest in KEYS]
    return {one.dest: (one.option_strings[0], re.sub(r" \(default: .*\)$", "", one.help or "")) for one in actions}
