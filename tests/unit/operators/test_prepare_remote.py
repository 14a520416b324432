"""What is prepared of a batch where the model is behind an API: words at once, vectors later."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest

from recallflow.embedder import Kind, Matrix
from recallflow.llm import Embedded
from recallflow.operators.decode import decode
from recallflow.operators.events import Analysis, Refused, Write
from recallflow.operators.prepare import prepare
from recallflow.records import Position, Record
from tests.unit.operators.harness import HASHING, make_event


class Remote:
    """A model that must not be asked while events are prepared."""

    name, dimension = "far", 3
    kind: Kind = "contextual"

    class Service:
        name, dimension = "far", 3

        async def embed(self, tenant_id: str, texts: Sequence[str]) -> Embedded:
            raise AssertionError(tenant_id, texts)

    service = Service()

    def embed(self, texts: Sequence[str]) -> Matrix:
        raise AssertionError(texts)


def prepared(embedder: Any, event: dict[str, Any]) -> Any:
    (item,) = prepare(embedder, [decode(Record(Position("memories", 0, 0), orjson.dumps(event), 0))])
    return item


def analysis(embedder: Any, event: dict[str, Any]) -> Analysis:
    item = prepared(embedder, event)
    assert isinstance(item, Write)
    assert item.analysis is not None
    return item.analysis


@pytest.mark.parametrize(
    ("kind", "fields"), [("message", {}), ("memory", {}), ("memory.update", {"memory_id": "m", "timestamp": None})]
)
def test_words_are_read_and_nothing_is_embedded(kind: str, fields: dict[str, Any]) -> None:
    event = make_event(kind, content="Ana moved to Porto. " * 60, **fields)
    found, local = analysis(Remote(), event), analysis(HASHING, event)
    assert (found.vectors, found.sketch, len(found.tokens), found.sizes) == (None, b"", 0, ())
    assert local.vectors is not None
    assert (found.stems, found.flags, found.named, found.cut) == (local.stems, local.flags, local.named, local.cut)


def test_a_vector_that_comes_with_the_event_is_used() -> None:
    found = analysis(Remote(), make_event("message", content="hello", embedding=[0, 3, 4]))
    assert found.vectors is not None
    np.testing.assert_allclose(found.vectors, [[0, 0.6, 0.8]])


def test_a_vector_of_another_size_is_refused() -> None:
    item = prepared(Remote(), make_event("message", content="hello", embedding=[1, 0]))
    assert isinstance(item, Refused)
    assert item.error.code == "wrong_dimension"
