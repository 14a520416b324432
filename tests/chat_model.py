"""A real HTTP server that speaks OpenAI's chat protocol, and answers as a function of the messages says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from tests.http_server import Handler, serving

Messages = list[dict[str, Any]]
Answer = str | tuple[str, dict[str, str]]  # a text, or a tool with its arguments


@contextmanager
def chat_model(answer: Callable[[Messages], Answer]) -> Iterator[dict[str, str]]:
    """The environment that the official client finds it by."""

    class Model(Handler):
        def do_POST(self) -> None:  # noqa: N802 - of http.server
            self.reply(orjson.dumps(_completion(answer(orjson.loads(self.body())["messages"]))))

    with serving(Model) as url:
        yield {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none"}


def _completion(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer if isinstance(answer, str) else None}
    if not isinstance(answer, str):
        name, arguments = answer
        function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
        message["tool_calls"] = [{"id": "call-1", "type": "function", "function": function}]
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": "one", "object": "chat.completion", "created": 1, "model": "stand-in", "choices": [choice]}
