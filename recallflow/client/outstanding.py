"""Queries that were asked and not answered yet."""

import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from recallflow.errors import QueryTimeout, UsageError
from recallflow.responses import Response
from recallflow.verbs.futures import new_future, resolve

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Pending:
    """A query that was asked and not answered yet. `deadline_s` in seconds of time.monotonic()."""

    query_id: str
    key: bytes
    timeout_s: float
    deadline_s: float
    future: "Future[Response]" = field(default_factory=new_future)


class Outstanding:
    """Queries without a response yet. Whoever pops one resolves its future. Thread-safe.

    Queries are filed under their record key, which a response carries as well: a response to somebody else's query is
    recognised by its key, unparsed.
    """

    def __init__(self) -> None:
        self._by_key: dict[bytes, dict[str, Pending]] = {}
        self._lock = threading.Lock()

    def add(self, pending: Pending) -> None:
        """Raises UsageError where the same query id is underway."""
        with self._lock:
            queries = self._by_key.setdefault(pending.key, {})
            if pending.query_id in queries:
                raise UsageError(f"query id {pending.query_id!r} is underway; give each query its own")
            queries[pending.query_id] = pending

    def pop(self, key: bytes, query_id: str) -> Pending | None:
        with self._lock:
            queries = self._by_key.get(key, {})
            pending = queries.pop(query_id, None)
            if pending is not None and not queries:
                del self._by_key[key]
            return pending

    # ------------------------------------------------------------------ what the exchange calls

    def receive(self, message: Any) -> None:
        """A message of the response topic."""
        key: bytes = message.key() or b""
        with self._lock:
            if key not in self._by_key:
                return
        try:
            response = Response.model_validate_json(message.value() or b"")
        except ValidationError as error:
            # Not the error itself: it quotes what it found, and that may be a memory.
            wrong = error.error_count()
            _log.warning("%s holds something that is no response: %d fields are wrong", message.topic(), wrong)
            return
        pending = self.pop(key, response.query_id)
        if pending is None:
            return
        resolve(pending.future, response)

    def fail_due(self, trouble: str | None) -> None:
        """Fails what has no response in time. `trouble`: what Kafka last complained of."""
        for pending in self._pop_due(time.monotonic()):
            pending.future.set_exception(QueryTimeout(pending.query_id, pending.timeout_s, trouble))

    def fail_all(self, error: Exception) -> None:
        for pending in self._pop_due(float("inf")):
            pending.future.set_exception(error)

    def _pop_due(self, now_s: float) -> list[Pending]:
        """All whose time is up, or everything at `now_s` = ∞."""
        with self._lock:
            due = [p for queries in self._by_key.values() for p in queries.values() if p.deadline_s <= now_s]
        return [p for p in due if self.pop(p.key, p.query_id) is not None]
