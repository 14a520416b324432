"""WhatsApp's export: both forms, all date formats, and ids from the content."""

from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recallflow.connectors.logs.log_format import DateOrder
from recallflow.connectors.logs.messengers import ANDROID_LINE, Dates, local_time, message_start
from recallflow.errors import UsageError
from tests.unit.connectors.logs.reading import Kept, Read, ms, read, times, zipped

ANDROID = """\
31/12/2025, 23:58 - Messages and calls are end-to-end encrypted. Tap to learn more.
31/12/2025, 23:58 - Ann created group "Trip: Rome"
31/12/2025, 23:59 - Ann: Who brings the kite?
And who the string?

It has three lines.
01/01/2026, 00:00 - Bo \U0001f98b: <Media omitted>
01/01/2026, 00:00 - Bo \U0001f98b: IMG-20260101-WA0001.jpg (file attached)
The kite!
01/01/2026, 00:01 - +49 170 1234567: ok
01/01/2026, 00:01 - +49 170 1234567: ok
01/01/2026, 00:02 - Ann: This message was deleted
01/01/2026, 00:03 - Ann: At nine: sharp. <This message was edited>
01/01/2026, 00:04 - Ann:
01/01/2026, 00:05 - Ann: null
"""

IOS = """\
\u200e[31.12.25, 23:58:01] Trip: \u200eMessages and calls are end-to-end encrypted.
[31.12.25, 23:59:59] Ann: Who brings the kite?
[13.01.26, 09:00:00] ~\u202fBo: \u200eimage omitted
[13.01.26, 09:00:01] ~\u202fBo: \u200e<attached: 00000004-PHOTO-2026-01-13.jpg>
[13.01.26, 09:00:02] \u202aBo\u202c: \u200eYou deleted this message.
[13.01.26, 09:00:03] Bo: \u200eMissed voice call
[13.01.26, 09:00:04] Bo: Nine \u200e<This message was edited>
"""


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def chat(tmp_path: Path, text: str, **scope: object) -> Read:
    return read(written(tmp_path / "WhatsApp Chat with Trip.txt", text), **scope)


def test_android(tmp_path: Path) -> None:
    found = chat(tmp_path, ANDROID)
    assert found.format == "whatsapp"
    assert found.column("content") == [
        "Who brings the kite?\nAnd who the string?\n\nIt has three lines.",
        "[file: IMG-20260101-WA0001.jpg]\nThe kite!", "ok", "ok", "At nine: sharp.", "null",
    ]  # fmt: skip
    assert found.column("name") == ["Ann", "Bo \U0001f98b", "+49 170 1234567", "+49 170 1234567", "Ann", "Ann"]
    assert times(found.messages)[:2] == [ms("2025-12-31T23:59:00Z"), ms("2026-01-01T00:00:00Z")]
    assert {*found.column("user_id")} == {*found.column("session_id")} == {"Trip"}
    assert found.skipped == {
        "lines of the program's own": 2, "media that are not in the export": 1, "deleted messages": 1,
        "empty messages": 1,
    }  # fmt: skip


def test_ios(tmp_path: Path) -> None:
    found = chat(tmp_path, IOS)
    assert found.column("content") == ["Who brings the kite?", "[file: 00000004-PHOTO-2026-01-13.jpg]", "Nine"]
    assert found.column("name") == ["Ann", "Bo", "Bo"]
    assert times(found.messages)[:2] == [ms("2025-12-31T23:59:59Z"), ms("2026-01-13T09:00:01Z")]
    assert found.skipped == {
        "lines of the program's own": 2, "media that are not in the export": 1, "deleted messages": 1,
    }  # fmt: skip


@pytest.mark.parametrize("unsaved", ["~ Bo", "~\u202fBo", "~\xa0Bo", "~Bo", "\u202a~ Bo\u202c"])
def test_unsaved_and_saved_contact_are_one_person(tmp_path: Path, unsaved: str) -> None:
    line = "[31.12.25, 23:59:59] {}: Who brings the kite?\n"
    before, after = (chat(tmp_path, line.format(name)).messages for name in (unsaved, "Bo"))
    assert before == after
    assert read(written(tmp_path / f"WhatsApp Chat with {unsaved}.txt", IOS)).column("user_id")[0] == "Bo"


@pytest.mark.parametrize(
    ("line", "moment"),
    [
        ("12/31/25, 12:05 AM - Ann: x", "2025-12-31T00:05:00Z"),
        ("12/31/25, 12:05\u202fPM - Ann: x", "2025-12-31T12:05:00Z"),
        ("[31/12/2025, 1:05:09 p.m.] Ann: x", "2025-12-31T13:05:09Z"),
        ("2025-12-31 13:05 - Ann: x", "2025-12-31T13:05:00Z"),
        ("[2025/12/31, 13:05:09] Ann: x", "2025-12-31T13:05:09Z"),
        ("[1.2.2025 klo 13.05.09] Ann: x", "2025-02-01T13:05:09Z"),
        ("31-12-2025 13:05 - Ann: x", "2025-12-31T13:05:00Z"),
    ],
)
def test_every_way_to_write_a_moment(tmp_path: Path, line: str, moment: str) -> None:
    found = chat(tmp_path, line)
    assert times(found.messages) == [ms(moment)]
    assert found.column("content") == ["x"]


def test_ambiguous_dates_are_refused_without_an_order(tmp_path: Path) -> None:
    text = "01/02/2026, 10:00 - Ann: one\n01/03/2026, 10:00 - Ann: two\n"
    with pytest.raises(UsageError, match=r"01/03/2026.*could be day or month first; give --date-order"):
        chat(tmp_path, text)
    assert times(chat(tmp_path, text, date_order="dmy").messages)[1] == ms("2026-03-01T10:00:00Z")
    assert times(chat(tmp_path, text, date_order="mdy").messages)[1] == ms("2026-01-03T10:00:00Z")


def test_dates_of_no_order_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="in no order that fits"):
        chat(tmp_path, "31/12/2025, 10:00 - Ann: one\n12/31/2025, 10:00 - Ann: two\n")


def test_the_clock_stands_where_the_option_says(tmp_path: Path) -> None:
    found = chat(tmp_path, ANDROID, zone=ZoneInfo("Europe/Berlin"))
    assert times(found.messages)[0] == ms("2025-12-31T22:59:00Z")
    assert found.column("id") == chat(tmp_path, ANDROID).column("id")


def test_the_zip_gives_the_chat_its_name(tmp_path: Path) -> None:
    path = zipped(tmp_path / "WhatsApp Chat - Trip.zip", {"_chat.txt": IOS.encode(), "PHOTO.jpg": b"\xff\xd8"})
    found = read(path)
    assert ({*found.column("user_id")}, found.skipped["files of another kind"]) == ({"Trip"}, 1)
    assert {*read(written(tmp_path / "_chat.txt", IOS)).column("user_id")} == {"ann"}


@pytest.mark.parametrize(
    "called",
    [
        "WhatsApp Chat mit Trip.txt", "WhatsApp-chat met Trip (1).txt", "Chat WhatsApp con Trip.txt",
        "Chat de WhatsApp con Trip.txt", "Discussion WhatsApp avec Trip.txt", "Conversa do WhatsApp com Trip.txt",
        "WhatsApp Чат с Trip.txt",
    ],
)  # fmt: skip
def test_the_file_names_the_chat_in_other_languages(tmp_path: Path, called: str) -> None:
    assert {*read(written(tmp_path / called, ANDROID)).column("user_id")} == {"Trip"}
    assert {*read(zipped(tmp_path / "x.zip", {called: ANDROID.encode()})).column("user_id")} == {"Trip"}


@pytest.mark.parametrize(
    "line",
    [
        "\u200f31/1/2024، 8:05 م - Ann: hello", "[2024/1/31 下午8:05:00] Ann: hello",
        "[2024. 1. 31. 오후 8:05:00] Ann: hello", "31/1/2024, 8:05 p. m. - Ann: hello",
    ],
)  # fmt: skip
def test_the_halves_of_a_day_in_other_languages(tmp_path: Path, line: str) -> None:
    found = chat(tmp_path, f"{line}\n")
    assert (found.column("content"), found.column("name")) == (["hello"], ["Ann"])
    assert times(found.messages) == [ms("2024-01-31T20:05:00Z")]


def test_lines_without_message_are_refused(tmp_path: Path) -> None:
    found = chat(
        tmp_path, "Some heading\n31/12/2025, 23:59 - Ann: one\n32/12/2025, 10:00 - Ann: two\n", date_order="dmy"
    )
    assert found.column("content") == ["one"]
    assert [line.partition(b": ")[0] for line in found.refused] == [
        b"WhatsApp Chat with Trip.txt, line 1", b"WhatsApp Chat with Trip.txt, line 3",
    ]  # fmt: skip


def test_bad_bytes_and_a_message_without_end_cost_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "WhatsApp Chat with Trip.txt"
    endless = b"31/12/2025, 23:59 - Ann: " + b"x" * 1_200_000 + b"\n" + b"more\n" * 100_000
    path.write_bytes(endless + b"31/12/2025, 23:59 - Bo: caf\xe9\r\n")
    found = read(path)
    assert (found.column("content"), len(found.refused)) == (["caf\ufffd"], 1)


def test_newer_export_adds_only_new_messages(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "state")
    assert kept.take(chat(tmp_path, ANDROID).lines) == {"created": 6}
    newer = ANDROID.replace("31/12/2025, 23:58 - Messages", "31/12/2025, 23:57 - Messages")
    assert kept.take(chat(tmp_path, newer + "02/01/2026, 08:00 - Bo: ok\n").lines) == {"duplicate": 6, "created": 1}
    assert (kept.contents("Trip")[2:4], len(kept.contents("Trip"))) == (["ok", "ok"], 7)


DAYS = st.lists(st.dates(date(2012, 1, 1), date(2035, 12, 31)), min_size=1, max_size=30).map(sorted)
WAYS: dict[DateOrder, tuple[str, ...]] = {
    "dmy": ("%d/%m/%Y", "%d/%m/%y", "%d.%m.%y"), "mdy": ("%m/%d/%y", "%m-%d-%Y"), "ymd": ("%Y-%m-%d", "%Y/%m/%d"),
}  # fmt: skip


@given(DAYS, st.sampled_from([(order, way) for order, ways in WAYS.items() for way in ways]))
def test_dates_are_read_as_written_or_refused(days: list[date], written_so: tuple[DateOrder, str]) -> None:
    order, way = written_so
    separator = next(one for one in way if one in "/.-")
    parts = [tuple(day.strftime(way).split(separator)) for day in days]
    dates = Dates("chat", None)
    for a, b, c in parts:
        dates.note(a, separator, b, c)
    try:
        dates.decide()
    except UsageError:
        assert order != "ymd"
        assert separator != "."
        swapped = [(day.month, day.day) for day in days]
        assert all(day <= 12 for _, day in swapped)  # no day was beyond the months, or it would have told
        dates = Dates("chat", order)
    assert [date(*dates.read(*one)) for one in parts] == days


@given(st.datetimes(datetime(2013, 1, 1), datetime(2035, 1, 1)), st.booleans())
def test_hours_are_read_in_both_clocks(moment: datetime, twelve: bool) -> None:
    moment = moment.replace(second=0, microsecond=0)
    clock = moment.strftime("%I:%M %p" if twelve else "%H:%M")
    found = message_start(f"{moment.strftime('%d/%m/%Y')}, {clock} - Ann: x", ANDROID_LINE)
    assert found is not None
    assert local_time(found, Dates("chat", "dmy")) == moment
