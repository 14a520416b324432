"""All commands with their options, from the parsers."""

import argparse
import re
from collections.abc import Iterator

from recallflow.cli.commands import commands
from tools.reference import markdown
from tools.reference.markdown import code, escaped, table

ANSI = re.compile(r"\x1b\[[0-9;]*m")


EXIT_CODES = (
    ("0", "success; of `run`, `enrich` and `serve`: stopped by a signal"),
    ("1", "failure, or a check that found problems (`doctor`, `verify`, `erase`, refused records of `replay`)"),
    ("2", "wrong arguments, values or settings, a missing state directory or library: a repetition does not help"),
    ("130, 141", "ended by Ctrl-C, or by a closed output pipe"),
)


def page() -> str:
    """Return the page of all commands."""
    introduction = (
        "From this page you can call every command. `recallflow COMMAND --help` prints the same. All commands have the "
        "same exit codes:"
    )
    codes = table(("exit code", "meaning"), EXIT_CODES)
    return markdown.page(
        "Command line", introduction, codes, *(_command(one, heading) for one, heading in walk(commands()))
    )


def walk(parser: argparse.ArgumentParser, depth: int = 2) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield every parser with the hashes of its heading, parents first."""
    for command in below(parser):
        yield command, "#" * depth
        yield from walk(command, min(depth + 1, 3))


def below(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Return the parsers of the subcommands, each once."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [command for action in actions for command in dict.fromkeys(action.choices.values())]


def _command(parser: argparse.ArgumentParser, heading: str) -> str:
    description = _plain(parser.description or "")
    usage = f"```text\n{_usage(parser)}\n```"
    examples = "\n".join(getattr(parser, "examples", ()))
    shown = f"For example:\n\n```text\n{examples}\n```" if examples else ""
    rows = [row for action in parser._actions if (row := _row(parser, action))]
    options = table(("option", "meaning", "default"), rows) if rows else ""
    return "\n\n".join(part for part in (f"{heading} {parser.prog}", description, usage, shown, options) if part)


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str, str] | None:
    if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
        return None
    names = ", ".join(map(code, action.option_strings)) or code(action.metavar or action.dest)
    takes = action.nargs != 0 and action.option_strings
    value = code(_metavar(action)) if takes else ""
    text = action.help or ""
    written = _plain(argparse.HelpFormatter(parser.prog)._expand_help(action)) if "%" in text else text
    default = "" if action.default in (None, False, argparse.SUPPRESS, (), []) or "(default" in text else action.default
    return f"{names} {value}".strip(), escaped(written), code(default) if default != "" else ""


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.rpartition(".")[2].upper()


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage with a fixed width and without colours."""
    formatter = argparse.HelpFormatter(parser.prog, width=100)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    return formatter.format_help().strip()


def _plain(text: str) -> str:
    return ANSI.sub("", text)
