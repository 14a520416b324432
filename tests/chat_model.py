"""A real HTTP server that speaks OpenAI's chat protocol, and answers as a function of the messages says."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

Messages = list[dict[str, Any]]
Answer = str | tuple[str, dict[str, str]]  # a text, or a tool with its arguments


@contextmanager
def chat_model(answer: Callable[[Messages], Answer]) -> Iterator[dict[str, str]]:
    """The environment that the official client finds it by."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = orjson.loads(self.rfile.read(int(self.headers["content-length"])))
            body = orjson.dumps(_completion(answer(asked["messages"])))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "OPENAI_API_KEY": "none"}
        server.shutdown()
        thread.join()


def _completion(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer if isinstance(answer, str) else None}
    if not isinstance(answer, str):
        name, arguments = answer
        function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
        message["tool_calls"] = [{"id": "call-1", "type": "function", "function": function}]
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": "one", "object": "chat.completion", "created": 1, "model": "stand-in", "choices": [choice]}
