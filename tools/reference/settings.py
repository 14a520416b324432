"""Every setting with its default, its variable of the environment and its flag."""

from dataclasses import MISSING, fields
from operator import attrgetter
from typing import Any

from recallflow.cli.options import _FLAGS
from recallflow.flows.config import KEYS, SECTIONS, VARIABLES, Config
from tools.reference import markdown
from tools.reference.markdown import code, prose, table

TOLD = (
    "A value comes from the first of these that names it: a flag, the environment, the file (`--config FILE`), the "
    "default. `recallflow run --print-config` shows what holds and where it was given; how to write the file is in "
    "[operations](../operations.md#settings). Options of librdkafka stand under `[kafka.librdkafka]`, or in "
    "`RECALLFLOW_KAFKA_LIBRDKAFKA_…`."
)


def page() -> str:
    """The page on all of them."""
    whole = table(HEADS, [_row("state_dir", None)])
    return markdown.page("Settings", TOLD, whole, *(_section(name, section) for name, section in SECTIONS.items()))


HEADS = ("setting", "default", "flag", "environment")


def _section(name: str, section: type[Any]) -> str:
    rows = [_row(key, section) for key in KEYS if key.startswith(f"{name}.")]
    return f"## {name}\n\n{prose(section)}\n\n{table(HEADS, rows)}"


def _row(key: str, section: type[Any] | None) -> tuple[str, str, str, str]:
    flag, _, told = _FLAGS.get(key, ("", None, ""))
    variables = [variable for variable, named in VARIABLES.items() if named == key]
    name = code(key.rpartition(".")[2]) + (f": {told}" if told else "")
    return name, _default(key, section), code(flag) if flag else "", " ".join(map(code, variables))


def _default(key: str, section: type[Any] | None) -> str:
    if section is not None:
        (field,) = (one for one in fields(section) if one.name == key.rpartition(".")[2])
        if field.default is MISSING and field.default_factory is MISSING and not hasattr(Config(), key.split(".")[0]):
            return "required"
    value = attrgetter(key)(Config())
    if value in (None, (), ""):
        return "none"
    return code(str(value).lower() if isinstance(value, bool) else value)
