"""A reranker that the platform supplies, over HTTP.

POST {model, query, documents, top_n} → {results: [{index, relevance_score}]}, which many services and servers speak.
"""

import asyncio
import http.client
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import orjson

from recallflow.errors import RerankerError, UsageError

AT_ONCE = 8  # requests
MOST_BYTES = 1024 * 1024  # of a response
_CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class HttpReranker:
    """Asks a service. `key`: for its Authorization header, if it wants one."""

    def __init__(self, name: str, url: str, key: str | None, timeout_s: float) -> None:
        """Raises UsageError for what is no URL."""
        self.name = name
        parts = urlsplit(url)
        if parts.scheme not in _CONNECTIONS or not parts.hostname:
            raise UsageError(f"the reranker's URL must begin with http:// or https:// and name a host, not {url!r}")
        self._connection, self._host, self._port = _CONNECTIONS[parts.scheme], parts.hostname, parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(AT_ONCE, "recallflow-rerank")

    async def score(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        from recallflow.tracing import model_call  # it loads OpenTelemetry

        with model_call("rerank", self.name):
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, question, texts)

    def _ask(self, question: str, texts: Sequence[str]) -> Sequence[float]:
        document = {"model": self.name, "query": question, "documents": [*texts], "top_n": len(texts)}
        # The caller gives up after the same time; this ends the thread that nobody waits for any more.
        connection = self._connection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request("POST", self._path, orjson.dumps(document), self._headers)
            with connection.getresponse() as response:
                body = response.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise RerankerError(f"it cannot be asked: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise RerankerError(f"it answered {response.status} {response.reason}")
        return _scores(body, len(texts))


def _scores(body: bytes, count: int) -> list[float]:
    """The number of each text. Raises RerankerError where one is missing."""
    try:
        results: list[dict[str, Any]] = orjson.loads(body)["results"]
        found = {result["index"]: result["relevance_score"] for result in results}
        return [float(found[at]) for at in range(count)]
    except KeyError as error:
        raise RerankerError(f"its answer has no {error.args[0]!r}, of {count} texts") from None
    except (TypeError, ValueError) as error:
        raise RerankerError(f"its answer cannot be read: {error}") from None
