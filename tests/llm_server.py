"""A real HTTP server that speaks OpenAI's protocol, deterministic, with faults on demand.

    with LlmServer() as server:
        server.answer("classify", lambda asked: {"relation": "contradicts", "confidence": 0.9})
        server.fail(Fault("status", status=429, retry_after="2"), times=2)
        …
        assert server.calls["classify"] == 3

The name of a call's schema is its task; embeddings are the task `embed`. What no test gave an answer for is answered
with the least that fits the schema. The vector of a text comes of its words, so that texts with words in common are
similar, unless a test gives it (`server.vectors`).
"""

import base64
import contextlib
import hashlib
import re
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import nan
from typing import Any, Literal, Self

import orjson

GIVE_UP_S = 300.0
LOOK_S = 0.01  # how often a call that hangs looks whether its caller is still there

Kind = Literal[
    "status",  # `status`, with `retry_after` if given
    "hang",  # until released
    "delay",  # answers after `seconds`
    "cut",  # closes the connection before any answer
    "cut_midway",  # … in the middle of its body
    "slow",  # one byte after another, until released
    "huge",  # an answer behind many megabytes of spaces
    "endless_error",  # the status 500, and a body that does not come until released
    "not_json",  # a body that is no JSON
    "invalid_json",  # the model writes no JSON
    "off_schema",  # the model writes JSON of another shape
    "refusal",
    "length",  # the model is cut off
    "wrong_dimension",
    "nan",
    "too_few",  # embeddings for fewer texts
]


@dataclass(frozen=True)
class Fault:
    """`task`: the struck task, or None for any. `text`: the embedded text, or None for any. `seconds`: of a delay."""

    kind: Kind
    task: str | None = None
    text: str | None = None
    status: int = 500
    retry_after: str | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Asked:
    """One call as it came. `headers`: names in lower case."""

    task: str
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def system(self) -> str:
        return self._said("system")

    @property
    def user(self) -> str:
        return self._said("user")

    @property
    def schema(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body["response_format"]["json_schema"]["schema"]
        return found

    @property
    def texts(self) -> list[str]:
        """To be embedded."""
        given = self.body["input"]
        return [given] if isinstance(given, str) else list(given)

    def _said(self, role: str) -> str:
        return "\n".join(message["content"] for message in self.body["messages"] if message["role"] == role)


Answer = Callable[[Asked], Any]
"""What the model writes to a call: a value, sent as JSON."""


@dataclass
class _Struck:
    fault: Fault
    times: int | None


@dataclass
class Now:
    changed: threading.Condition = field(default_factory=threading.Condition)
    requests: list[Asked] = field(default_factory=list)
    held: int = 0
    hung_up: int = 0
    releases: int = 0


class LlmServer(ThreadingHTTPServer):
    """Listens at a free port of this machine from `with` on. `dimension`: of vectors, where a call names none."""

    request_queue_size = 512
    daemon_threads = True
    block_on_close = False

    def __init__(self, dimension: int = 64) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.dimension = dimension
        self.vectors: dict[str, Sequence[float]] = {}
        self.oddities: dict[str, Any] = {}  # sent as they are, in place of a text's vector
        self.packs = True  # sends vectors in base64 to whoever asks for it, as not every server does
        self.now = Now()
        self._answers: dict[str, Answer] = {}
        self._faults: list[_Struck] = []
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def answer(self, task: str, answer: Answer | dict[str, Any]) -> None:
        self._answers[task] = answer if callable(answer) else lambda _: answer

    def fail(self, *faults: Fault | Kind, times: int | None = 1) -> None:
        """Each strikes so many calls that no earlier one strikes; None is all until `heal`."""
        with self.now.changed:
            self._faults += [_Struck(Fault(one) if isinstance(one, str) else one, times) for one in faults]

    def heal(self) -> None:
        with self.now.changed:
            self._faults.clear()
        self.release()

    def release(self) -> None:
        """Calls that hang by now are answered."""
        with self.now.changed:
            self.now.releases += 1
            self.now.changed.notify_all()

    @property
    def requests(self) -> list[Asked]:
        with self.now.changed:
            return list(self.now.requests)

    @property
    def calls(self) -> Counter[str]:
        return Counter(asked.task for asked in self.requests)

    def wait_for(self, come: Callable[[Now], bool]) -> None:
        """Wait until a condition on the state holds: `server.wait_for(lambda now: now.held == 3)`."""
        with self.now.changed:
            assert self.now.changed.wait_for(lambda: come(self.now), GIVE_UP_S), "the server waits in vain"

    def begun(self, asked: Asked) -> Fault | None:
        """Count the call, and return its fault."""
        with self.now.changed:
            self.now.requests.append(asked)
            self.now.changed.notify_all()
            for struck in self._faults:
                if struck.times != 0 and _strikes(struck.fault, asked):
                    struck.times = None if struck.times is None else struck.times - 1
                    return struck.fault
        return None

    def written(self, asked: Asked) -> Any:
        given = self._answers.get(asked.task)
        return least(asked.schema) if given is None else given(asked)

    def vector(self, text: str, dimension: int) -> list[float]:
        given = self.vectors.get(text)
        return words_vector(text, dimension) if given is None else [*given, *[0.0] * (dimension - len(given))]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: LlmServer

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if self.headers["Content-Length"] and not sent:  # whoever asked was killed
            return
        body = orjson.loads(sent) if sent else {}
        self._ask(body)

    def _ask(self, body: dict[str, Any]) -> None:
        task = "embed" if "input" in body else body.get("response_format", {}).get("json_schema", {}).get("name", "")
        asked = Asked(task, body, {name.lower(): value for name, value in self.headers.items()})
        fault = self.server.begun(asked)
        if fault is None:
            self._reply(self._answered(asked, None))
        else:
            self._strike(asked, fault)

    def _strike(self, asked: Asked, fault: Fault) -> None:
        if fault.kind == "cut":
            self._hang_up()
        elif fault.kind == "status":
            further = {"Retry-After": fault.retry_after} if fault.retry_after is not None else {}
            if 300 <= fault.status < 400:
                further["Location"] = self.path  # where the call would be answered
            # As services do, it quotes what it was sent.
            self._reply({"error": {"message": f"fault: {asked.body}", "code": "fault"}}, fault.status, further)
        elif fault.kind == "huge":
            self._send(b" " * 100_000_000 + orjson.dumps(self._answered(asked, None)))
        elif fault.kind == "endless_error":
            self._head(500, 1_000_000)
            self._held(lambda: None)
        elif fault.kind == "not_json":
            self._send(b"<html>it works</html>")
        elif fault.kind == "cut_midway":
            body = orjson.dumps(self._answered(asked, None))
            self._head(200, len(body))
            self.wfile.write(body[: len(body) // 2])
            self._hang_up()
        elif fault.kind == "slow":
            self._dribble(orjson.dumps(self._answered(asked, None)))
        else:
            if fault.kind == "hang" and not self._held(lambda: None):
                return
            if fault.kind == "delay":
                time.sleep(fault.seconds)
            self._reply(self._answered(asked, fault.kind))

    def _answered(self, asked: Asked, fault: Kind | None) -> dict[str, Any]:
        return self._embedded(asked, fault) if asked.task == "embed" else self._completed(asked, fault)

    def _completed(self, asked: Asked, fault: Kind | None) -> dict[str, Any]:
        content = orjson.dumps(self.server.written(asked)).decode()
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if fault == "invalid_json":
            message["content"] = content[:-1] + ", and so on"
        elif fault == "off_schema":
            message["content"] = '{"something": "else"}'
        elif fault == "refusal":
            message |= {"content": None, "refusal": "I will not say anything about that."}
        elif fault == "length":
            message["content"] = content[: len(content) // 2]
        ended = "length" if fault == "length" else "stop"
        given, written = _tokens(asked.system + asked.user), _tokens(content)
        return {
            "id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": asked.body["model"],
            "choices": [{"index": 0, "finish_reason": ended, "message": message}],
            "usage": {"prompt_tokens": given, "completion_tokens": written, "total_tokens": given + written},
        }  # fmt: skip

    def _embedded(self, asked: Asked, fault: Kind | None) -> dict[str, Any]:
        dimension = asked.body.get("dimensions", self.server.dimension) + (fault == "wrong_dimension")
        texts = asked.texts[: -1 if fault == "too_few" else None]
        vectors = [self.server.vector(text, dimension) for text in texts]
        odd = self.server.oddities
        if fault == "nan":
            vectors[0][0] = nan
        packs = _packed if self.server.packs and asked.body.get("encoding_format") == "base64" else list[float]
        tokens = sum(map(_tokens, texts))
        return {
            "object": "list",
            "model": asked.body["model"],
            "data": [
                {"object": "embedding", "index": at, "embedding": odd[text] if text in odd else packs(vector)}
                # in no order that one may count on
                for at, (text, vector) in reversed([*enumerate(zip(texts, vectors, strict=True))])
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    def _held(self, meanwhile: Callable[[], None]) -> bool:
        now, gone = self.server.now, False
        with now.changed:
            now.held, releases = now.held + 1, now.releases
            now.changed.notify_all()
        while not gone and now.releases == releases:
            with contextlib.suppress(ConnectionError):
                meanwhile()
            readable = select.select([self.connection], [], [], LOOK_S)[0]
            gone = bool(readable) and not _peeked(self.connection)
        with now.changed:
            now.held, now.hung_up = now.held - 1, now.hung_up + gone
            now.changed.notify_all()
        self.close_connection = gone
        return not gone

    def _dribble(self, body: bytes) -> None:
        self._head(200, len(body))
        left = iter(body[:-1])
        sent = 0

        def byte() -> None:
            nonlocal sent
            if (one := next(left, None)) is not None:
                self.wfile.write(bytes([one]))
                sent += 1

        if self._held(byte):
            self.wfile.write(body[sent:])

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _reply(self, document: dict[str, Any], status: int = 200, further: dict[str, str] | None = None) -> None:
        self._send(orjson.dumps(document), status, further or {})

    def _send(self, body: bytes, status: int = 200, further: dict[str, str] | None = None) -> None:
        self._head(status, len(body), further or {})
        self.wfile.write(body)

    def _head(self, status: int, length: int, further: dict[str, str] | None = None) -> None:
        self.send_response(status)
        own = {"Content-Type": "application/json", "Content-Length": str(length)}
        for name, value in (own | (further or {})).items():
            self.send_header(name, value)
        self.end_headers()

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # whoever asked has gone
            super().handle()

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""


def _strikes(fault: Fault, asked: Asked) -> bool:
    texts = asked.texts if asked.task == "embed" else []
    return fault.task in (None, asked.task) and (fault.text is None or any(fault.text in text for text in texts))


def least(schema: dict[str, Any], root: dict[str, Any] | None = None) -> Any:
    """The least value that fits a schema."""
    root = schema if root is None else root
    if "$ref" in schema:
        found: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return least(found, root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return least(schema[union][0], root)
    kinds = schema.get("type", "object")
    kind = kinds if isinstance(kinds, str) else "null" if "null" in kinds else kinds[0]
    if kind == "object":
        return {name: least(schema["properties"][name], root) for name in schema.get("required", ())}
    if kind == "array":
        return [least(schema["items"], root) for _ in range(schema.get("minItems", 0))]
    if kind in ("number", "integer"):
        return schema.get("minimum", 0)
    return {"string": "x" * schema.get("minLength", 0), "boolean": False, "null": None}[kind]


def words_vector(text: str, dimension: int) -> list[float]:
    """Words fall into signed buckets: texts with words in common are similar. Its length is not 1."""
    vector = [0.0] * dimension
    for word in re.findall(r"\w+", text.lower()) or [text]:
        number = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
        vector[number % dimension] += 1.0 if number >> 63 else -1.0
    return vector if any(vector) else [1.0, *vector[1:]]


def _tokens(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _peeked(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return b""
