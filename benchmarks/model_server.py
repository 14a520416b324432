"""A model service that takes the time it is told to, in a process of its own.

    python -m benchmarks.model_server [--takes TASK=SECONDS …]

It speaks OpenAI's protocol and answers the least that fits a call's schema, whose name is the task; a text's embedding
is the task `embed`. A task that takes `inf` is never answered.
"""

import argparse
import asyncio
import contextlib
import struct
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from recallflow.connectors.llm.policy import CHARACTERS_PER_TOKEN, estimate_tokens
from recallflow.connectors.model_embedders import load_tiktoken
from tests.llm_server import least

BACKLOG = 400
NEVER = float("inf")
DIMENSION = 64
EVERY = "*"  # what calls of a task take that is not named

Times = Mapping[str, float]


class Service(NamedTuple):
    """A service that runs. `stop`: cuts off whatever it has not answered; it may be called again."""

    url: str
    stop: Callable[[], None]


@contextlib.contextmanager
def serving(takes_s: Times) -> Iterator[Service]:
    """A service; `takes_s`: by task, or `EVERY`."""
    given = [f"--takes={task}={seconds}" for task, seconds in takes_s.items()]
    with subprocess.Popen([sys.executable, "-m", __name__, *given], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            yield Service(server.stdout.readline().decode().strip(), server.kill)
        finally:
            server.kill()


async def serve(takes_s: Times) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                sent = await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
                asked = orjson.loads(sent)
                await asyncio.sleep(takes_s.get(_task(asked), takes_s.get(EVERY, 0.0)))
                body = orjson.dumps(_embedded(asked) if "input" in asked else _completed(asked))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
                writer.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=BACKLOG)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


def _task(asked: dict[str, Any]) -> str:
    return "embed" if "input" in asked else str(_schema(asked).get("name"))


def _schema(asked: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = asked.get("response_format", {}).get("json_schema", {})
    return found


def _completed(asked: dict[str, Any]) -> dict[str, Any]:
    content = orjson.dumps(least(_schema(asked).get("schema", {}))).decode()
    message = {"role": "assistant", "content": content}
    texts = [one["content"] for one in asked["messages"]]
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": asked["model"],
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": _tokens(*texts), "completion_tokens": _tokens(content)},
    }


def _embedded(asked: dict[str, Any]) -> dict[str, Any]:
    """All texts in one direction."""
    texts = [asked["input"]] if isinstance(asked["input"], str) else asked["input"]
    vector = [1.0] + [0.0] * (asked.get("dimensions", DIMENSION) - 1)
    packed = b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    data = [{"object": "embedding", "index": at, "embedding": packed} for at in range(len(texts))]
    return {"object": "list", "model": asked["model"], "data": data, "usage": {"prompt_tokens": _tokens(*texts)}}


_COUNTER = load_tiktoken()
COUNTED_BY = f"characters / {CHARACTERS_PER_TOKEN}" if _COUNTER is None else _COUNTER.counted_by


def _tokens(*texts: str) -> int:
    if _COUNTER is None:
        return estimate_tokens(*texts)
    return sum(map(_COUNTER.count_tokens, texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--takes", action="append", default=[], metavar="TASK=SECONDS", help=f"{EVERY}: of all others")
    pairs = (given.partition("=") for given in parser.parse_args().takes)
    asyncio.run(serve({task: float(seconds) for task, _, seconds in pairs}))


if __name__ == "__main__":
    main()
