"""Any table can come in: columns named or guessed, times of every unit and zone, nulls."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallflow.connectors.logs.log_format import ImportScope
from recallflow.connectors.logs.registry import Registry
from recallflow.connectors.logs.sources import open_source
from recallflow.errors import UsageError
from recallflow.parsing import parse

SCOPE = ImportScope("acme", "ann", "test")
MOMENT = datetime(2024, 3, 1, 10, 0, 1, 123000, UTC)
MS = 1_709_287_201_123


def read(path: Path, scope: ImportScope = SCOPE, **columns: str) -> list[dict[str, Any]]:
    (log,), _ = Registry(columns=columns).logs_of(open_source(path))
    return [orjson.loads(value) for value in log.read(scope)]


def written(path: Path, table: pa.Table, rows: int = 2) -> Path:
    pq.write_table(table, path, row_group_size=rows)
    return path


def test_columns_are_guessed_and_the_rest_is_metadata(tmp_path: Path) -> None:
    table = pa.table(
        {
            "Text": ["one", "two", None, "four"], "Author": ["Bo", None, "Bo", "Bo"], "conversation_id": [7, 7, 8, 8],
            "score": [0.5, None, float("nan"), 1.0], "price": [Decimal("1.50")] * 4, "raw": [b"\xff"] * 4,
            "day": [date(2024, 3, 1)] * 4,
        }
    )  # fmt: skip
    first, second, third, _ = read(
        written(tmp_path / "t.parquet", table), ImportScope("acme", "ann", "test", user_given=True)
    )
    assert first == {
        "tenant_id": "acme", "user_id": "ann", "environment": "test", "type": "message", "session_id": "7",
        "id": first["id"], "role": "user", "content": "one", "name": "Bo",
        "metadata": {"score": 0.5, "price": 1.5, "raw": "\ufffd", "day": "2024-03-01"},
    }  # fmt: skip
    assert (second["content"], "name" in second, second["session_id"]) == ("two", False, "7")
    assert [one["id"].rpartition("-")[0] for one in (first, second)] == ["7-1", "7-2"]
    assert "content" not in third  # and so it is refused with its field named, not left out


def test_columns_that_are_named_count_before_guesses(tmp_path: Path) -> None:
    table = pa.table({"text": ["guess"], "said": ["named"], "who": ["bo"], "user_id": ["not me"]})
    path = written(tmp_path / "t.parquet", table)
    (event,) = read(path, content="said", user_id="who")
    assert (event["content"], event["user_id"]) == ("named", "bo")
    assert event["metadata"] == {"text": "guess", "user_id (column)": "not me"}


@pytest.mark.parametrize(
    "column",
    [
        *(pa.array([MOMENT]).cast(pa.timestamp(unit, "UTC"), safe=False) for unit in ("ms", "us", "ns")),
        pa.array([MOMENT]).cast(pa.timestamp("us", "Asia/Tokyo")),
        pa.array([MS * 1_000_000 + 999]).cast(pa.timestamp("ns")),  # finer than Python's own
        pa.array([MS]),
        pa.array([MS / 1000]),
        pa.array([MS * 1000]),
        pa.array([MS * 1_000_000]),
        pa.array([MOMENT.isoformat()]),
    ],
    ids=str,
)
def test_times_of_every_unit_and_zone_are_the_same_moment(tmp_path: Path, column: pa.Array) -> None:
    (event,) = read(written(tmp_path / "t.parquet", pa.table({"content": ["x"], "created_at": column})))
    assert parse(orjson.dumps(event)).timestamp == MS


def test_times_without_a_zone_use_the_given_zone(tmp_path: Path) -> None:
    naive = pa.array([datetime(2024, 7, 1, 12)])
    path = written(tmp_path / "t.parquet", pa.table({"content": ["x"], "time": naive}))
    (event,) = read(path, ImportScope("acme", "ann", zone=ZoneInfo("Europe/Lisbon")))
    assert event["timestamp"] == "2024-07-01T12:00:00+01:00"


def test_a_day_and_seconds_since_1970_are_times(tmp_path: Path) -> None:
    for column, at in (
        (pa.array([date(2024, 3, 1)]), 1_709_251_200_000),
        (pa.array([1_709_251_200]), 1_709_251_200_000),
    ):
        (event,) = read(written(tmp_path / "t.parquet", pa.table({"content": ["x"], "date": column})))
        assert parse(orjson.dumps(event)).timestamp == at


def test_conversations_in_a_column_are_messages(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    events = read(written(tmp_path / "t.parquet", pa.table({"id": ["a", "b"], "messages": [talk, talk]})))
    assert [(one["id"].rpartition("-")[0], one["role"], one["content"]) for one in events[:2]] == [
        ("a-1", "user", "hello"),
        ("a-2", "assistant", "hi"),
    ]
    assert len({one["id"] for one in events}) == 4


@pytest.mark.parametrize(
    "content", [b'{"said":"one","at":1709287201}\n{"said":"two"}\n', b'[{"said":"one","at":1709287201},{"said":"two"}]']
)
def test_lines_and_documents_are_rows_where_columns_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.json").write_bytes(content)
    first, second = read(tmp_path / "t.json", content="said", timestamp="at")
    assert (first["content"], second["content"]) == ("one", "two")
    assert parse(orjson.dumps(first)).timestamp == 1_709_287_201_000


def test_columns_of_the_table_are_reported(tmp_path: Path) -> None:
    table = pa.table({"user": ["u1"], "conversation": ["c"], "text": ["x"], "created": [MOMENT], "score": [1]})
    (log,), _ = Registry().logs_of(open_source(written(tmp_path / "t.parquet", table)))
    scope = ImportScope("acme", "ann")
    (event,) = map(orjson.loads, log.read(scope))
    assert (event["user_id"], event["session_id"], parse(orjson.dumps(event)).timestamp) == ("u1", "c", MS)
    assert scope.columns == {
        "user": "user_id", "conversation": "session_id", "text": "content", "created": "timestamp", "score": "",
    }  # fmt: skip


def test_table_without_text_column_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path / "t.parquet", pa.table({"a": [1], "b": ["x"]}))
    with pytest.raises(UsageError, match="Give --column content=NAME; there are a, b"):
        read(path)
    with pytest.raises(UsageError, match="no column c; there are a, b"):
        read(path, content="c")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UsageError, match=r"t.parquet: cannot be read as Parquet"):
        read(path)
