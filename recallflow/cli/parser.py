"""Parser of the commands: help with examples, no abbreviations, and suggestions for mistyped words."""

import argparse
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, TypeAlias

from rich.text import Text
from rich_argparse import RichHelpFormatter

from recallflow.cli.output import UNWRAPPED, console, error, width

# Words of other programs → our commands.
SYNONYMS = {
    "add": "remember", "backup": "state checkpoint", "check": "doctor", "delete": "forget", "find": "ask",
    "follow": "tail", "get": "show", "import": "replay", "ingest": "replay", "load": "replay", "log": "tail",
    "ls": "list", "memories": "list", "new": "create", "query": "ask", "recall": "ask", "remove": "forget",
    "rm": "forget", "search": "ask", "send": "remember", "server": "serve", "start": "run", "store": "remember",
    "up": "run", "watch": "tail",
}  # fmt: skip
_SURROGATE = re.compile("[\ud800-\udfff]")
WIDTH_MAX = 120  # columns of help; longer lines would be hard to read
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Handler = Callable[[argparse.Namespace], int | None]  # returns the exit code; None is 0


class HelpFormatter(RichHelpFormatter):
    """Formatter of help: as wide as the terminal, or unwrapped in pipes. It keeps the newlines of descriptions."""

    group_name_formatter = str
    usage_markup = help_markup = text_markup = False
    styles = RichHelpFormatter.styles | {  # legible on dark and on light backgrounds
        "argparse.groups": "bold",
        "argparse.metavar": "italic",
        "argparse.prog": "bold",
    }

    def __init__(self, prog: str, *, stderr: bool = False) -> None:
        columns = width(sys.stderr if stderr else sys.stdout)
        help_width = UNWRAPPED if columns is None else min(columns, WIDTH_MAX)
        super().__init__(prog, max_help_position=30, width=help_width, console=console(stderr=stderr))

    def add_examples(self, lines: Sequence[str]) -> None:
        """Add example commands. A long one continues after a backslash, before an option."""
        indent = " " * self._current_indent
        wrapped = []
        for line in lines:
            while len(indent + line) > self._width and (cut := line.rfind(" --", 0, self._width - 4)) > len(indent):
                wrapped.append(f"{indent}{line[:cut]} \\")
                line = f"    {line[cut + 1 :]}"
            wrapped.append(indent + line)
        self._current_section.rich_items.append(Text("\n".join(wrapped) + "\n"))

    def _rich_fill_text(self, text: Text, width: int, indent: Text) -> Text:
        paragraphs = [super(HelpFormatter, self)._rich_fill_text(line, width, indent) for line in text.split("\n")]
        for paragraph in paragraphs:
            paragraph.rstrip()
        return Text("\n").join(paragraphs) + "\n\n"

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> "Callable[[int], tuple[str, ...]]":
        """Return the metavar without choices. They are in the help text instead, because some flags have many."""
        if action.choices is None or action.metavar is not None:
            return super()._metavar_formatter(action, default_metavar)
        return lambda size: (default_metavar,) * size

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.choices is None or isinstance(action, argparse._SubParsersAction):
            return action.help
        return f"{action.help or ''} [{', '.join(map(str, action.choices))}]".lstrip()


class Parser(argparse.ArgumentParser):
    """Parser of one command or of all. `examples` are command lines in the help, which a test runs. `groups` are
    headings of the help, with the names of their commands."""

    def __init__(self, *, examples: Sequence[str] = (), groups: Mapping[str, Sequence[str]] = {}, **other: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, allow_abbrev=False, **other)
        self.examples, self._groups = tuple(examples), groups

    def format_usage(self) -> str:
        """Return the usage in one line, with required options only: the help lists all."""
        return f"usage: {self._usage()}\n"

    def format_help(self, *, stderr: bool = False) -> str:
        formatter = HelpFormatter(self.prog, stderr=stderr)
        formatter.add_usage(self._usage(), [], [])
        formatter.add_text(self.description)
        for group in self._action_groups:
            actions = group._group_actions
            if len(actions) == 1 and isinstance(actions[0], argparse._SubParsersAction):
                self._add_commands(formatter, actions[0])
                continue
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(actions)
            formatter.end_section()
        if self.examples:
            formatter.start_section("examples")
            formatter.add_examples(self.examples)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _usage(self) -> str:
        required = [one for one in self._actions if one.required and one.option_strings]
        words = [self.prog, "[OPTIONS]", *(f"{one.option_strings[0]} {one.metavar}" for one in required)]
        return " ".join([*words, *(_positional(action) for action in self._actions if not action.option_strings)])

    def _add_commands(self, formatter: HelpFormatter, subparsers: "argparse._SubParsersAction[Any]") -> None:
        commands = {action.dest: action for action in subparsers._get_subactions()}
        groups = {**self._groups} or {"actions": [*commands]}
        for title, names in groups.items():
            formatter.start_section(title)
            formatter.add_arguments([commands[name] for name in names if name in commands])
            formatter.end_section()

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print without argparse's handling of closed pipes, which `perform` handles."""
        if message:
            (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        """End the process with the usage and the error in the command line."""
        sys.stderr.write(self.format_usage())
        error(f"{message} ({self.prog} --help)")
        self.exit(2)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else [*args]
        if "_ARGCOMPLETE" in os.environ:  # an incomplete command line
            return super().parse_known_args(words, namespace)
        if not words and self._subcommands() is not None:
            self.exit(2, self.format_help(stderr=True))
        # Python decodes invalid bytes to lone surrogates.
        if invalid := next((word for word in words if _SURROGATE.search(word)), None):
            text, encoding = os.fsencode(invalid).decode(errors="backslashreplace"), sys.getfilesystemencoding()
            self.error(f"{text}: not valid in the locale's encoding {encoding}; set LC_ALL=C.UTF-8")
        options, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(self._unknown_message(unknown))
        return options, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(one) for one in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"unknown command {value!r}{_did_you_mean(self._similar_commands(str(value), choices))}")
        similar = get_close_matches(str(value).lower(), choices, 1)
        raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(choices)}{_did_you_mean(similar)}")

    def _unknown_message(self, words: Sequence[str]) -> str:
        flag = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        if flag is None:
            return f"unexpected arguments: {shlex.join(words)}"
        known = [name for action in self._actions for name in action.option_strings]
        completions = [name for name in known if flag.startswith("--") and name.startswith(flag)]
        return f"unknown option {flag}{_did_you_mean(completions or get_close_matches(flag, known, 1))}"

    def _subcommands(self) -> "argparse._SubParsersAction[Parser] | None":
        return next((one for one in self._actions if isinstance(one, argparse._SubParsersAction)), None)

    def _similar_commands(self, typed: str, choices: list[str]) -> list[str]:
        """Return the command lines of the commands that a mistyped word may mean: one at most."""
        typed = typed.lower()
        commands = {one.prog.removeprefix(f"{self.prog} "): one.prog for one in self.subparsers()}
        if (synonym := SYNONYMS.get(typed)) in commands:
            return [commands[synonym]]
        if similar := get_close_matches(typed, choices, 1):
            return [commands[similar[0]]]
        by_last_word = {words.split()[-1]: words for words in commands}
        return [commands[by_last_word[word]] for word in get_close_matches(typed, by_last_word, 1)]

    def subparsers(self) -> "Iterator[Parser]":
        """Yield the parsers of all commands and their actions, such as `topics` and `topics create`."""
        if (subcommands := self._subcommands()) is not None:
            for parser in subcommands.choices.values():
                yield parser
                yield from parser.subparsers()


def add_command(commands: Commands, name: str, run: Handler) -> argparse.ArgumentParser:
    """Add a command. The docstring of its handler is its help: a sentence, further sentences, examples after `$`."""
    lines = inspect.cleandoc(run.__doc__ or name).splitlines()
    examples = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    description = " ".join(line for line in lines if not line.startswith("$ "))
    text = lines[0][0].lower() + lines[0][1:].removesuffix(".")
    parser = commands.add_parser(name, help=text, description=description, examples=examples)
    parser.set_defaults(run=run)
    return parser


def _positional(action: argparse.Action) -> str:
    name = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest)
    by_number = {"?": f"[{name}]", "*": f"[{name} …]", "+": f"{name} …", argparse.PARSER: f"{name} …"}
    return by_number.get(str(action.nargs), str(name))


def _did_you_mean(similar: Iterable[str]) -> str:
    names = " or ".join(similar)
    return f"; did you mean {names}?" if names else ""
