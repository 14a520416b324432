"""Tables of any kind can be read: columns named or guessed, times of every unit and zone, nulls, and delimiters."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.logs.log_format import ImportScope
from recallflow.connectors.logs.registry import Registry
from recallflow.connectors.logs.sources import open_source
from recallflow.connectors.logs.tables import TableReader, mapped
from recallflow.errors import UsageError
from recallflow.parsing import parse
from tests.unit.connectors.logs.reading import Kept, ms, read, times

SCOPE = ImportScope("acme", "ann", "test")
MOMENT = datetime(2024, 3, 1, 10, 0, 1, 123000, UTC)
MS = 1_709_287_201_123


def rows_of(path: Path, scope: ImportScope = SCOPE, **columns: str) -> list[dict[str, Any]]:
    (log,), _ = Registry(columns=columns).logs_of(open_source(path))
    return [orjson.loads(value) for value in log.read(scope)]


def table_file(path: Path, table: pa.Table, rows: int = 2) -> Path:
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
    first, second, third, _ = rows_of(
        table_file(tmp_path / "t.parquet", table), ImportScope("acme", "ann", "test", user_given=True)
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
    path = table_file(tmp_path / "t.parquet", table)
    (event,) = rows_of(path, content="said", user_id="who")
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
    (event,) = rows_of(table_file(tmp_path / "t.parquet", pa.table({"content": ["x"], "created_at": column})))
    assert parse(orjson.dumps(event)).timestamp == MS


def test_times_without_a_zone_use_the_given_zone(tmp_path: Path) -> None:
    naive = pa.array([datetime(2024, 7, 1, 12)])
    path = table_file(tmp_path / "t.parquet", pa.table({"content": ["x"], "time": naive}))
    (event,) = rows_of(path, ImportScope("acme", "ann", zone=ZoneInfo("Europe/Lisbon")))
    assert event["timestamp"] == "2024-07-01T12:00:00+01:00"


def test_missing_and_infinite_numbers_are_no_times(tmp_path: Path) -> None:
    times = pa.array([float("nan"), float("inf")])
    missing, infinite = rows_of(table_file(tmp_path / "t.parquet", pa.table({"content": ["x", "y"], "time": times})))
    assert ("timestamp" in missing, infinite["timestamp"]) == (False, "inf")


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.sampled_from(["memory", "7", "{"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["role", "content"]), inner),
)
COLUMNS = ("content", "type", "timestamp", "id", "session_id", "user_id", "messages", "metadata", "cleared", "entities")


@given(row=st.dictionaries(st.sampled_from(COLUMNS), VALUES), given_user=st.booleans())
def test_rows_of_any_values_become_events(row: dict[str, Any], given_user: bool) -> None:
    table = TableReader("t", ImportScope(user_given=given_user), {})
    for event in table.events(row, mapped([*row], {}, [row]), 1):
        assert isinstance(orjson.loads(event), dict)


def test_a_day_and_seconds_since_1970_are_times(tmp_path: Path) -> None:
    for column in (pa.array([date(2024, 3, 1)]), pa.array([1_709_251_200])):
        (event,) = rows_of(table_file(tmp_path / "t.parquet", pa.table({"content": ["x"], "date": column})))
        assert parse(orjson.dumps(event)).timestamp == 1_709_251_200_000


def test_conversations_in_a_column_are_messages(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    events = rows_of(table_file(tmp_path / "t.parquet", pa.table({"id": ["a", "b"], "messages": [talk, talk]})))
    assert [(one["id"].rpartition("-")[0], one["role"], one["content"]) for one in events[:2]] == [
        ("a-1", "user", "hello"), ("a-2", "assistant", "hi"),
    ]  # fmt: skip
    assert len({one["id"] for one in events}) == 4


@pytest.mark.parametrize(
    "content", [b'{"said":"one","at":1709287201}\n{"said":"two"}\n', b'[{"said":"one","at":1709287201},{"said":"two"}]']
)
def test_lines_and_documents_are_rows_where_columns_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.json").write_bytes(content)
    first, second = rows_of(tmp_path / "t.json", content="said", timestamp="at")
    assert (first["content"], second["content"]) == ("one", "two")
    assert parse(orjson.dumps(first)).timestamp == 1_709_287_201_000


def test_columns_of_the_table_are_reported(tmp_path: Path) -> None:
    table = pa.table({"user": ["u1"], "conversation": ["c"], "text": ["x"], "created": [MOMENT], "score": [1]})
    (log,), _ = Registry().logs_of(open_source(table_file(tmp_path / "t.parquet", table)))
    scope = ImportScope("acme", "ann")
    (event,) = map(orjson.loads, log.read(scope))
    assert (event["user_id"], event["session_id"], parse(orjson.dumps(event)).timestamp) == ("u1", "c", MS)
    assert scope.columns == {
        "user": "user_id", "conversation": "session_id", "text": "content", "created": "timestamp", "score": "",
    }  # fmt: skip


def test_table_without_text_column_is_reported(tmp_path: Path) -> None:
    path = table_file(tmp_path / "t.parquet", pa.table({"a": [1], "b": ["x"]}))
    with pytest.raises(UsageError, match="Give --column content=NAME; there are a, b"):
        rows_of(path)
    with pytest.raises(UsageError, match="no column c; there are a, b"):
        rows_of(path, content="c")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UsageError, match=r"t.parquet: cannot be read as Parquet"):
        rows_of(path)


CHAT = """\
user,thread,role,text,created,score
u1,t1,user,"Who brings the kite, and
the ""string""?",2026-01-30 12:00:00,1
u1,t1,assistant,Bo does.,1769774401,
"""


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_rows_are_messages(tmp_path: Path) -> None:
    found = read(written(tmp_path / "chat.txt", CHAT), zone=ZoneInfo("Europe/Berlin"))
    assert found.format == "csv"
    assert found.column("content") == ['Who brings the kite, and\nthe "string"?', "Bo does."]
    assert (found.column("role"), found.column("session_id")) == (["user", "assistant"], ["t1", "t1"])
    assert found.column("metadata") == [{"score": "1"}, None]
    assert times(found.messages) == [ms("2026-01-30T11:00:00Z"), ms("2026-01-30T12:00:01Z")]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_other_delimiters_and_line_ends_are_read(tmp_path: Path, delimiter: str, ending: str) -> None:
    lines = ["user,text".replace(",", delimiter), f"u1{delimiter}one, two"]
    found = read(written(tmp_path / "t", b"\xef\xbb\xbf" + ending.join(lines).encode()))
    assert (found.column("user_id"), found.column("content")) == (["u1"], ["one, two"])


def test_rows_that_do_not_fit_are_refused_alone(tmp_path: Path) -> None:
    content = f'user,text\nu1,one,two\nu2,"{"x" * 1_200_000}"\nu3,\nu4,four\nu5\nu6,"never closed\n'
    found = read(written(tmp_path / "t.csv", content))
    assert (found.column("user_id"), len(found.refused)) == (["u4", "u6"], 4)


def test_named_columns_and_unknown_ones(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", "wer,was\nu1,one\n")
    with pytest.raises(UsageError, match=r"CSV \(wer, was\), give --column content=NAME"):
        read(path)
    columns = {"content": "was", "user_id": "wer"}
    (log,), _ = Registry(columns=columns).logs_of(open_source(path))
    assert (log.format.name, len([*log.read(ImportScope())])) == ("csv", 1)


def test_columns_of_one_name_keep_their_values(tmp_path: Path) -> None:
    (event,) = read(written(tmp_path / "t.csv", "user,text,note,note,\nu1,one,a,b,c\n")).messages
    assert event["metadata"] == {"note": "a", "note (4)": "b", "column 5": "c"}


def test_a_file_that_grew_adds_its_new_rows(tmp_path: Path) -> None:
    kept, path = Kept(tmp_path / "state"), tmp_path / "t.csv"
    rows = "user,text\nu1,one\nu1,two\n"
    taken: list[Any] = [kept.take(read(written(path, text)).lines) for text in (rows, rows, f"{rows}u1,three\n")]
    assert taken == [{"created": 2}, {"duplicate": 2}, {"duplicate": 2, "created": 1}]
