"""CSV as spreadsheets and programs write it."""

from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from recallflow.connectors.logs.log_format import ImportScope
from recallflow.connectors.logs.registry import Registry
from recallflow.connectors.logs.sources import open_source
from recallflow.errors import UsageError
from tests.unit.connectors.logs.reading import Kept, ms, read, times

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
