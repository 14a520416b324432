"""Which nodes a memory belongs to: read by rule from its fields and its text, in any language.

A name in a text is a run of capitalised words. A single one counts only inside a sentence: at the beginning of one,
every word is capitalised. Scripts without case have no such names; there, mentions, tags and URNs are read, and what
comes with the memory.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from recallflow.caching import Kept
from recallflow.language import FUNCTION_WORDS
from recallflow.state.graph_codec import ENTITY_KIND, EPISODE_KIND, Description, NodeKey, node_key
from recallflow.state.rows import MemoryRow

READ_CHARACTERS = 20_000  # a pasted document is about what its beginning names
NAMES_MAX = 16  # of each kind: a text that names more is a list


class Named(NamedTuple):
    """What a text names, in its own spelling."""

    entities: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    urns: tuple[str, ...] = ()


class Link(NamedTuple):
    """That a memory belongs to a node, what the node is called, and how the memory describes it."""

    key: str
    kind: str
    name: str
    role: str
    description: Description | None = None
    is_urn: bool = False  # the name is one


class Relation(NamedTuple):
    """An edge that a memory states."""

    source: NodeKey
    target: NodeKey
    type: str
    archived: bool
    properties: dict[str, Any] | None
    weight: float = 1.0
    confidence: float = 1.0


_CASED = 0x1_F000  # no script with case lies beyond


def _upper() -> str:
    """Every letter that begins a capitalised word and is not of ASCII, as ranges of a regular expression."""
    ranges: list[list[int]] = []
    for code in range(0x80, _CASED):
        if unicodedata.category(chr(code)) not in ("Lu", "Lt"):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


def _run(first: str, upper: str) -> re.Pattern[str]:
    rest = r"(?:[\w'’-]*\w)?"
    no_address = r"(?![\w@]|[./:]\w)"
    return re.compile(rf"{first}{rest}(?:[ \u00a0][{upper}]{rest})*{no_address}")


_INSIDE = r"[\w@#/:.'’-]"  # before a letter: it begins no word
_UPPER = _upper()
_BEYOND_ASCII = re.compile(f"[{_UPPER}]")
_RUN = _run(rf"(?<!{_INSIDE})[A-Z{_UPPER}]", f"A-Z{_UPPER}")
# Three times as fast: a pattern that begins with one of a few letters is searched for by them.
_ASCII_RUN = _run(rf"[A-Z](?<!{_INSIDE}.)", "A-Z")
# What may stand between the end of a sentence and its first word.
_OPENING = " \t\u00a0\"'“”„«»‘’()[]{}*_-–—>#¿¡"
_ENDS = frozenset(".!?…。！？:;\n\r")
_LOOK_BACK = 12
_MENTION = re.compile(r"(?<![a-zA-Z0-9_.+@/-])@(\w+(?:[.-]\w+)*)")  # no part of an address
_TAG = re.compile(r"(?<![a-zA-Z0-9_&#/])#(\w*[^\W\d_]\w*(?:-\w+)*)")
_URN = re.compile(r"\burn:[a-z0-9][a-z0-9-]{0,31}:[^\s\"'<>()\[\]{}]*[^\s\"'<>()\[\]{}.,;:!?…。！？]", re.IGNORECASE)
_REPOSITORY = re.compile(
    r"(?<![\w.-])((?:github\.com|gitlab\.com|bitbucket\.org|codeberg\.org)/[\w.-]+/[\w.-]*[\w-])", re.IGNORECASE
)


# ---------------------------------------------------------------------- text


def read_names(text: str) -> Named:
    """The names, tags and URNs of a text."""
    text = text[:READ_CHARACTERS]
    mentions = _MENTION.findall(text) if "@" in text else []
    entities = _distinct([*mentions, *_capitalised(text)])
    tags = _distinct(_TAG.findall(text)) if "#" in text else ()
    urns = _distinct(_urns(text)) if ":" in text or "/" in text else ()
    return Named(entities, tags, urns)


def _urns(text: str) -> Iterator[str]:
    if ":" in text:
        yield from _URN.findall(text)
    if "/" in text:
        yield from (found.removesuffix(".git") for found in _REPOSITORY.findall(text))


def _capitalised(text: str) -> Iterator[str]:
    if text.isupper():  # somebody shouts
        return
    plain = text.isascii() or not _BEYOND_ASCII.search(text)
    for match in (_ASCII_RUN if plain else _RUN).finditer(text):
        found = match[0]
        if found.isalpha():  # most are a single word
            if len(found) > 1 and found.lower() not in FUNCTION_WORDS and not _begins_sentence(text, match.start()):
                yield found
            continue
        begins = _begins_sentence(text, match.start())
        for run in _runs[found]:
            if begins and run and run[0].lower() in FUNCTION_WORDS:
                run = run[1:]
                begins = False
            if len(run) > 1 or (run and not begins and run[0].lower() not in FUNCTION_WORDS):
                yield " ".join(run)
            begins = False


def _begins_sentence(text: str, start: int) -> bool:
    if start > 1 and text[start - 1] == " " and text[start - 2].isalnum():
        return False
    before = text[max(0, start - _LOOK_BACK) : start].rstrip(_OPENING)
    return not before or before[-1] in _ENDS or unicodedata.category(before[-1]) == "So"


def _runs_of(found: str) -> tuple[list[str], ...]:
    """The names in a run of capitalised words. What is bent by an apostrophe ends one (Ann's, Ankara'da); a single
    letter, or a word that only begins with one or with a pronoun (I'm, J'ai), is none: an empty run in its place."""
    runs: list[list[str]] = [[]]
    for word in found.split():
        stem, apostrophe, rest = word.replace("’", "'").rpartition("'")
        bent = bool(apostrophe) and rest.islower()
        if len(word) == 1 or (bent and (len(stem) < 3 or stem.lower() in FUNCTION_WORDS)):
            runs.append([])
        elif bent:
            runs[-1].append(stem)
            runs.append([])
        else:
            runs[-1].append(word)
    return tuple(runs if runs[-1] else runs[:-1])


_runs = Kept(_runs_of, 2 * 1024 * 1024)  # a few contractions are most of them


def _distinct(names: Any) -> tuple[str, ...]:
    """In order, each spelling of a name once, not too many."""
    return tuple(islice(dict.fromkeys(names), NAMES_MAX))


# ---------------------------------------------------------------------- memory

_NOBODY = node_key(ENTITY_KIND, "")  # what a blank name comes to


def links(row: MemoryRow, episode_id: str | None, named: Named) -> dict[str, Link]:
    """Node key → link, for every node that the memory belongs to. Where it names one node several times, the first
    gives the role, and the first that describes the node gives the name."""
    found: dict[str, Link] = {}
    for link in _all_links(row, episode_id, named):
        before = found.get(link.key)
        if before is None:
            if len(link.key) > len(link.kind) + 1:  # a blank name is none
                found[link.key] = link
        elif link.description is not None and before.description is None:
            found[link.key] = before._replace(name=link.name, description=link.description)
    return found


def _all_links(row: MemoryRow, episode_id: str | None, named: Named) -> Iterator[Link]:
    yield _link("type", row.kind)
    if row.category is not None:
        yield _link("category", row.category)
    for topic in row.topics:
        yield _link("topic", topic)
    for tag in (*row.tags, *named.tags):
        yield _link("tag", tag)
    if row.project_id is not None:
        yield _link("repo", row.project_id)
    if episode_id is not None:
        yield _link(EPISODE_KIND, episode_id)
    if row.name is not None:
        yield _link(ENTITY_KIND, row.name, "author")
    yield from _given_entities(row)
    for name in named.entities:
        yield _link(ENTITY_KIND, name, "mention")
    for urn in named.urns:
        yield _link(ENTITY_KIND, urn, "mention", is_urn=True)


def _given_entities(row: MemoryRow) -> Iterator[Link]:
    """A URN is a node beside that of the name given with it: texts say the one or the other."""
    for entity in row.entities:
        name, urn = entity["name"], entity.get("urn")
        properties = {field: value for field, value in entity.items() if field not in ("name", "urn")}
        description = Description(urn, properties) if urn is not None or properties else None
        yield _link(ENTITY_KIND, name)._replace(description=description)
        if urn is not None:
            yield _link(ENTITY_KIND, urn, is_urn=True)._replace(
                description=Description(urn, {"name": name, **properties})
            )
    for relation in row.relations:
        yield _link(ENTITY_KIND, relation["source"])
        yield _link(ENTITY_KIND, relation["target"])


def _make_link(link: tuple[str, str, str, bool]) -> Link:
    kind, name, role, is_urn = link
    return Link(node_key(kind, name), kind, name, role, None, is_urn)


_links = Kept(_make_link, 4 * 1024 * 1024)  # the same few are named over and over


def _link(kind: str, name: str, role: str | None = None, is_urn: bool = False) -> Link:
    return _links[kind, name, role or kind, is_urn]


def relations(row: MemoryRow) -> list[Relation]:
    """The edges between entities that a memory states. An end given as a URN is the entity named with it."""
    names = {node_key(ENTITY_KIND, e["urn"]): node_key(ENTITY_KIND, e["name"]) for e in row.entities if e.get("urn")}

    def end(name: str) -> NodeKey:
        key = node_key(ENTITY_KIND, name)
        return NodeKey(names.get(key, key))

    found = [
        Relation(
            end(r["source"]),
            end(r["target"]),
            r["type"],
            r.get("archived", False),
            r.get("properties"),
            r.get("weight", 1.0),
            r.get("confidence", 1.0),
        )
        for r in row.relations
    ]
    return [one for one in found if _NOBODY not in (one.source.text, one.target.text)]
