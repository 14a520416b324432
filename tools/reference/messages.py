"""The texts of all errors that the code raises, read from its syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from recallflow import errors

ROOT = Path(__file__).parents[2]
ROOMS = ("recallflow", "flows", "operators", "connectors", "state")
Texts = dict[str, str]
EXCEPTIONS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}


class Message(NamedTuple):
    """The text of one error, with `{value}` for each value in it."""

    file: str
    error: str
    text: str


def messages() -> list[Message]:
    """Return the messages of all exceptions and field problems, in the order of files and lines."""
    return list(dict.fromkeys(message for room in ROOMS for path in _modules(room) for message in _in_module(path)))


def _modules(room: str) -> Iterator[Path]:
    """Yield the modules of a folder. Links to other rooms are not followed."""
    for path in sorted((ROOT / room).rglob("*.py")):
        if not any(parent.is_symlink() for parent in path.relative_to(ROOT).parents if parent != Path()):
            yield path


def _in_module(path: Path) -> Iterator[Message]:
    return _in_scope(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text("utf-8")), {})


def _in_scope(file: str, scope: ast.AST, outer: Texts) -> Iterator[Message]:
    """Yield the messages of a module, class or function. `outer` are the texts of variables outside it."""
    nodes, inner = list[ast.AST](), list[ast.AST]()
    below = [*ast.iter_child_nodes(scope)]
    while below:
        node = below.pop(0)
        is_scope = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        (inner if is_scope else nodes).append(node)
        below = [*below, *([] if is_scope else ast.iter_child_nodes(node))]
    texts = outer | {
        target.id: text
        for node in nodes
        if isinstance(node, ast.Assign) and (text := _text(node.value, outer))
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and (error := _error(node.func)):
            found = [text for argument in node.args if (text := _text(argument, texts))]
            if found:
                yield Message(file, error, found[-1])
    for node in inner:
        yield from _in_scope(file, node, texts)


def _error(called: ast.expr) -> str:
    """Return the name of the exception that is called, `FieldProblem` included, or an empty text."""
    if isinstance(called, ast.Attribute) and called.attr == "of":  # InvalidRecord.of(…)
        called = called.value
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return name if name in EXCEPTIONS or name == "FieldProblem" else ""


def _text(node: ast.expr, texts: Texts) -> str:
    """Return a literal with a blank in it, with `{value}` for each interpolated value; else an empty text. `texts` are
    the last ones of variables, by name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.JoinedStr):
        text = "".join(_part(part, texts) for part in node.values)
    else:
        return ""
    return text if " " in text.strip() else ""


def _part(part: ast.expr, texts: Texts) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    if isinstance(part.value, ast.Name) and part.value.id in texts:
        return texts[part.value.id]
    return "{" + (ast.unparse(part.value) if isinstance(part.value, ast.Name | ast.Attribute) else "value") + "}"
