"""Valid events, and what can be wrong with JSON and bytes."""

import codecs
import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.mutations.cast import BEGIN_MS, BYSTANDERS, ENVIRONMENTS, PROJECT, SENDERS, USERS

Event = dict[str, Any]
Path = tuple[Any, ...]
LEVELS = 5
IDS = ("m", "a/b", "../m", "m1", "m2", "x" * 128)
SESSIONS = ("s", "m", "s/1")

STRANGE_TEXTS = (
    "", " ", "*", "..", "../../etc/passwd", "a/b", "\u0000", "a\u0000b", "\n", "\u202egnp.exe", "\u200b", "\ufeff",
    "e\u0301", "\u00e9", "\uff41\uff43\uff4d\uff45", "K", "ß", "İ", "\U0001f469\u200d\U0001f467", "' OR 1=1 --",
    "{{7*7}}", "%s%n", "null", "true", "NaN", "x" * 129, "x" * 513, "\u0e01" * 200, "\ufdfa" * 100, "__proto__",
    "🙂" * 40,
)  # fmt: skip
STRANGE_NUMBERS = (
    0, -1, 1.5, -0.0, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 10**400, 1e308, 5e-324, 9_999_999_999,
    -62_135_596_800_001, 253_402_300_800_000,
)  # fmt: skip
STRANGE_TIMES = (
    "yesterday", "2026-02-30T00:00:00Z", "30000-01-01T00:00:00Z", "2026-01-01", "2026-06-30T23:59:60Z", "-1",
)  # fmt: skip
STRANGE: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"": ""}, [None], {"a": {"b": [1]}})
NAMES = ("tenant_id", "user_id", "environment", "project_id", "id", "memory_id", "type", "timestamp", "Tenant_Id", "x")


def templates(random: Random) -> list[Callable[[], Event]]:
    """Makers of the fields of each kind of event, beside who it is of."""

    def pick(given: tuple[str, ...]) -> str:
        return random.choice(given)

    def text() -> str:
        words = ("walnuts", "Oslo", "3 June", "bicycle", "Ana", "likes", "the", "launch", "red", "cellar", "every")
        return " ".join(random.choices(words, k=random.randint(1, 9)))

    def edge() -> Event:
        return {"source": pick(IDS), "target": pick(IDS), "type": "likes", "weight": 0.5}

    return [
        lambda: {"type": "message", "content": text(), "session_id": pick(SESSIONS), "name": "Kim", "role": "user"},
        lambda: {"type": "message", "content": text(), "id": pick(IDS), "receipt": True, "project_id": PROJECT},
        lambda: {"type": "message", "content": [{"type": "text", "text": text()}, {"type": "image_url"}]},
        lambda: {
            "type": "memory", "content": text(), "id": pick(IDS), "tags": ["a", "b"], "entities": [{"name": "Ana"}],
        },
        lambda: {
            "type": "memory", "content": text(), "relations": [{"source": "Ana", "type": "likes", "target": "Bo"}],
        },
        lambda: {"type": "memory", "content": text(), "metadata": {"a": [1, 2]}, "project_id": PROJECT},
        lambda: {"type": "memory.update", "memory_id": pick(IDS), "content": text(), "importance": 0.7},
        lambda: {"type": "memory.update", "memory_id": pick(IDS), "tags": ["c"], "summary": None, "receipt": True},
        lambda: {"type": "memory.forget", "memory_id": pick(IDS)},
        lambda: {"type": "memory.forget", "filter": {"session_id": pick(SESSIONS)}},
        lambda: {"type": "memory.feedback", "memory_id": pick(IDS), "useful": True},
        lambda: {"type": "episode.end", "session_id": pick(SESSIONS)},
        lambda: {"type": "category.summary", "category": "food", "summary": text()},
        lambda: {"type": "episode.summary", "episode_id": pick(IDS), "summary": text(), "session_id": pick(SESSIONS)},
        lambda: {"type": "graph.edges", "edges": [edge(), edge()]},
        lambda: {"type": "graph.archive", "entities": [pick(IDS)], "archived": True},
        lambda: {
            "type": "memory.embedding", "memory_id": pick(IDS), "embedding": [0.5] * random.choice((4, 256)),
            "model": "hash", "content_hash": "0" * 64,
        },
        lambda: {"type": "user.erase"},
        lambda: {"type": "recall", "query": "What is the nonce?", "k": 50},
        lambda: {"type": "recall", "query": text(), "mode": "recency", "filters": {"tags": ["a"]}, "max_tokens": 500},
        lambda: {
            "type": "recall", "query": text(), "strategy": "hybrid_graph", "entity_urns": ["Ana"], "mode": "balanced",
        },
        lambda: {"type": "recall", "query": text(), "wait_for": "memories:0:1", "include_history": True},
        lambda: {"type": "recall", "query": text(), "project_id": PROJECT, "reply_to": {"topic": "recall.responses"}},
        lambda: {"type": "memory.get", "memory_id": pick((*IDS, "nonce"))},
        lambda: {"type": "memory.history", "memory_id": pick((*IDS, "nonce"))},
        lambda: {"type": "user.stats"},
        lambda: {"type": "episodes.list"},
        lambda: {"type": "graph.trace", "query": text()},
        lambda: {"type": "graph.explore", "nodes": [pick((*IDS, "nonce"))]},
        lambda: {"type": "graph.facts", "entities": ["Ana"]},
        lambda: {"type": "graph.health"},
    ]  # fmt: skip


def mutated(random: Random, event: Event) -> bytes:
    for _ in range(random.randint(1, 3)):
        random.choice(_OF_FIELDS)(random, event)
    value = _written(random, event)
    return random.choice(_OF_BYTES)(random, value) if random.random() < 0.3 else value


# ---------------------------------------------------------------------- fields


def _paths(given: Any, at: Path = ()) -> list[Path]:
    """The way to each value within, down to some depth."""
    inner: list[tuple[Any, Any]] = []
    if len(at) == LEVELS:
        return []
    if isinstance(given, dict):
        inner = [*given.items()]
    elif isinstance(given, list):
        inner = [*enumerate(given[:20])]
    return [path for name, one in inner for path in ((*at, name), *_paths(one, (*at, name)))]


def _put(event: Event, path: Path, value: Any) -> None:
    holder: Any = event
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = value


def strange(random: Random) -> Any:
    """A value that hardly anything expects."""
    kind = random.random()
    if kind < 0.45:
        return random.choice(STRANGE_TEXTS)
    if kind < 0.65:
        return random.choice(STRANGE_NUMBERS)
    if kind < 0.75:
        return random.choice(STRANGE_TIMES)
    if kind < 0.95:
        return json.loads(json.dumps(random.choice(STRANGE)))
    return random.choice((_nested, _long, _many))(random)


def _nested(random: Random) -> Any:
    value: Any = 1
    for _ in range(random.choice((10, 200, 900))):
        value = [value] if random.random() < 0.5 else {"a": value}
    return value


def _long(random: Random) -> str:
    return random.choice(("x", "é", "word ", "\U0001f642")) * random.choice((1_000, 20_001))


def _many(random: Random) -> Any:
    count = random.choice((101, 201, 2_000))
    return ["x"] * count if random.random() < 0.5 else {f"f{number}": number for number in range(count)}


def _replace(random: Random, event: Event) -> None:
    _put(event, random.choice(_paths(event) or [("x",)]), strange(random))


def _remove(random: Random, event: Event) -> None:
    event.pop(random.choice([*event] or ["x"]), None)


def _add(random: Random, event: Event) -> None:
    event[random.choice(NAMES)] = strange(random)


def _rename(random: Random, event: Event) -> None:
    name = random.choice([*event] or ["x"])
    event[random.choice((name.upper(), f"{name} ", name.replace("_", "-"), f"\u200b{name}"))] = event.pop(name, 1)


def _move(random: Random, event: Event) -> None:
    """Somebody else's tenant, user or environment."""
    field, names = random.choice(
        (("tenant_id", (*SENDERS, *BYSTANDERS)), ("user_id", USERS), ("environment", (*ENVIRONMENTS, "ops", "PROD")))
    )
    event[field] = random.choice(names)


def _kind(random: Random, event: Event) -> None:
    event["type"] = random.choice([make() for make in templates(random)])["type"]


def _time(random: Random, event: Event) -> None:
    event["timestamp"] = random.choice((*STRANGE_TIMES, *STRANGE_NUMBERS, BEGIN_MS, BEGIN_MS - 10**9, BEGIN_MS + 10**9))


_OF_FIELDS = (_replace, _replace, _replace, _remove, _add, _rename, _move, _kind, _time)

# ---------------------------------------------------------------------- bytes


def _written(random: Random, event: Event) -> bytes:
    """As JSON; now and then with a field twice, as two readers may each take another one of them."""
    try:
        text = json.dumps(event, ensure_ascii=random.random() < 0.5)
    except ValueError:  # a number of more digits than Python writes
        text = "{}"
    if random.random() < 0.1 and event:
        again = {random.choice(NAMES[:6]): random.choice((*SENDERS, *USERS, *BYSTANDERS))}
        text = (
            f"{{{json.dumps(again)[1:-1]},{text[1:]}"
            if random.random() < 0.5
            else f"{text[:-1]},{json.dumps(again)[1:]}"
        )
    return text.encode(errors="surrogatepass")


def _cut(random: Random, value: bytes) -> bytes:
    return value[: random.randrange(len(value) + 1)]


def _flip(random: Random, value: bytes) -> bytes:
    changed = bytearray(value or b"{")
    for _ in range(random.randint(1, 4)):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _insert(random: Random, value: bytes) -> bytes:
    at = random.randrange(len(value) + 1)
    what = (
        b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b'"', b"{", b"}", b",", b"\\", b"\xc0\xaf", b"1e999",
        b"NaN",
    )  # fmt: skip
    return value[:at] + random.choice(what) + value[at:]


def _framed(random: Random, value: bytes) -> bytes:
    begins = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, b"\x00\x00\x00\x00\x07", b" " * 50, b"[", b"\xef\xbb")
    return random.choice(begins) + value


def _recoded(random: Random, value: bytes) -> bytes:
    return value.decode(errors="ignore").encode(random.choice(("utf-16", "utf-32-be", "utf-7", "cp037")), "ignore")


def _joined(random: Random, value: bytes) -> bytes:
    return random.choice((value + value, value + b"\n" + value, value + b"}", b"[" + value + b"]", b"", b"null", b"0"))


_OF_BYTES = (_cut, _flip, _flip, _insert, _framed, _recoded, _joined)
