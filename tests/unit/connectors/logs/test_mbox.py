"""Mailboxes: texts of every kind of mail, threads, and unreadable mails."""

from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.unit.connectors.logs.reading import Kept, Read, ms, read, times

FROM = b"From ann@example.com Fri Jan 30 12:00:00 2026\n"


def mail(number: int, text: str = "", sender: str = "Ann <ann@example.com>", **headers: str) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["Message-ID"] = sender, f"<{number}@example.com>"
    message["Date"] = f"Fri, 30 Jan 2026 12:00:{number:02} +0100"
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    message.set_content(text)
    return message


def written(path: Path, *mails: EmailMessage | bytes) -> Path:
    bodies = [one if isinstance(one, bytes) else one.as_bytes() for one in mails]
    path.write_bytes(b"\n".join(FROM + body.replace(b"\nFrom ", b"\n>From ") for body in bodies))
    return path


def box(tmp_path: Path, *mails: EmailMessage | bytes) -> Read:
    return read(written(tmp_path / "All mail.mbox", *mails))


def test_mails_are_messages_of_threads(tmp_path: Path) -> None:
    answer = "Bo does.\nFrom here on.\n\nOn Friday Ann wrote:\n> Who brings it?\n>> really?\n"
    found = box(
        tmp_path,
        mail(1, "Who brings it?", Subject="The kite"),
        mail(
            2, answer, sender="=?utf-8?q?B=C3=B6?= <bo@example.com>", References="<1@example.com>",
            Subject="Re: The kite",
        ),
        mail(3, "", Subject="Wind is up"),
    )  # fmt: skip
    assert found.format == "mbox"
    assert found.column("content") == ["The kite\n\nWho brings it?", "Bo does.\nFrom here on.", "Wind is up"]
    assert found.column("name") == ["Ann", "Bö", "Ann"]
    assert found.column("session_id") == ["1@example.com", "1@example.com", "3@example.com"]
    assert times(found.messages)[0] == ms("2026-01-30T11:00:01Z")
    assert {*found.column("user_id")} == {"ann"}
    assert found.messages[1]["metadata"] == {"source": "mbox", "subject": "Re: The kite", "from": "bo@example.com"}
    assert found.skipped == {"quoted lines of earlier mails": 2}


def test_texts_of_every_kind_are_read(tmp_path: Path) -> None:
    html, both, odd = mail(1), mail(2, "plain"), mail(3)
    html.set_content(
        "<head><title>t</title></head><p>Kite &amp;\nstring</p><script>x</script><p>Bo</p>", subtype="html"
    )
    both.add_alternative("<p>html</p>", subtype="html")
    both.add_attachment(b"\x00" * 10, maintype="image", subtype="png", filename="kite.png")
    odd.set_content("caf\u00e9", charset="latin-1")
    raw = odd.as_bytes().replace(b"iso-8859-1", b"no-such-charset")
    found = box(tmp_path, html, both, raw)
    assert found.column("content") == ["Kite & string\nBo", "plain\n[file: kite.png]", "caf\ufffd"]


def test_mails_without_date_or_content(tmp_path: Path) -> None:
    undated = mail(1, "when?")
    undated.replace_header("Date", "some day")
    found = box(tmp_path, undated, mail(2), mail(3, "good"))
    assert ((found.column("content"), len(found.refused)), found.skipped) == ((["good"], 1), {"empty messages": 1})


@pytest.mark.parametrize("unclosed", ["<!--", "<script>", "<p ", "<", "&"])
def test_html_that_is_never_closed_takes_one_pass(tmp_path: Path, unclosed: str) -> None:
    message = mail(1)
    message.set_content(f"<p>Kite</p>{unclosed * (1_000_000 // len(unclosed))}", subtype="html")
    found = box(tmp_path, message, mail(2, "next"))
    assert found.column("content")[-1] == "next"


def test_mails_nested_without_end_are_refused_alone(tmp_path: Path) -> None:
    deep = mail(1).as_bytes().partition(b"Content-Type")[0] + b"Content-Type: message/rfc822\n\n" * 3_000
    found = box(tmp_path, deep, mail(2, "next"))
    assert (found.column("content"), len(found.refused)) == (["next"], 1)


def test_large_mail_is_read_up_to_its_limit(tmp_path: Path) -> None:
    large = mail(1, "text")
    large.add_attachment(b"x" * 9_000_000, maintype="application", subtype="zip", filename="a.zip")
    found = box(tmp_path, large, mail(2, "next"))
    assert found.column("content") == ["text\n[file: a.zip]", "next"]
    assert found.skipped == {"mails whose end was too long to read": 1}


def test_a_mailbox_that_grew_adds_new_mails(tmp_path: Path) -> None:
    kept, mails = Kept(tmp_path / "state"), [mail(1, "one"), mail(2, "two")]
    mails[0].replace_header("Message-ID", "none")
    taken = [kept.take(box(tmp_path, *mails[:count]).lines) for count in (1, 2)]
    assert taken == [{"created": 1}, {"duplicate": 1, "created": 1}]


@pytest.mark.parametrize("text", [b"From here on: nothing\nmore\n", FROM + b"no header\n"])
def test_a_text_that_begins_like_a_mailbox_is_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "t.txt").write_bytes(text)
    with pytest.raises(Exception, match="not a conversation log"):
        read(tmp_path / "t.txt")
