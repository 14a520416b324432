"""Lines that go into commands and come out of them."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest


@pytest.fixture(scope="session")
def jsonl() -> Callable[..., bytes]:
    """Events as the lines that go into a pipe or a log; bytes stay as they are."""

    def lines(*events: dict[str, Any] | bytes) -> bytes:
        return b"".join((e if isinstance(e, bytes) else orjson.dumps(e)) + b"\n" for e in events)

    return lines


@pytest.fixture(scope="session")
def parsed() -> Callable[[str | bytes], list[Any]]:
    """JSON lines → their values."""

    def values(text: str | bytes) -> list[Any]:
        return [orjson.loads(line) for line in text.splitlines()]

    return values
