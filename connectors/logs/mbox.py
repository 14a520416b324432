"""Mailboxes in the mbox format: Gmail's Takeout, Thunderbird, Apple Mail, `mail`.

    From ann@example.com Thu Jan  1 00:00:00 2026
    From: Ann <ann@example.com>
    Message-ID: <1@example.com>
    …
    (a blank line, the text, a blank line, the next `From `)

The format is RFC 4155's; a line of a text that begins with `From ` is written `>From `."""

import hashlib
import html
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesParser
from email.policy import compat32
from email.utils import getaddresses, parsedate_to_datetime
from typing import BinaryIO

from recallflow.connectors.local_inputs import bounded_lines
from recallflow.connectors.logs import log_format as log
from recallflow.connectors.logs.log_format import ImportScope, LogFormat
from recallflow.connectors.logs.sources import LogFile, LogHead

_MAIL_BYTES = 8 * 1024 * 1024  # size limit of a mail in memory; its text comes before large attachments
_LINE_BYTES = 1024 * 1024
_START = re.compile(rb"From \S.*\d{1,2}:\d{2}(:\d{2})?.*")  # the time of arrival distinguishes it from a sentence
_HEADER = re.compile(rb"[!-9;-~]+:")
_ESCAPED = re.compile(rb">+From ")
_QUOTE = re.compile(r"\s*>")
_ATTRIBUTION = re.compile(r".{0,200}:\s*")  # "On Monday Ann wrote:", in any language
_IDS = re.compile(r"<[^<>\s]{1,500}>")
_QUOTED, _CUT = "quoted lines of earlier mails", "mails whose end was too long to read"
_INVISIBLE = re.compile(r"<!--.*?(?:-->|\Z)|<(script|style|head|title)\b.*?(?:</\1\s*>|\Z)", re.DOTALL | re.IGNORECASE)
_BLOCK = re.compile(r"</?(?:p|div|br|li|tr|h[1-6]|blockquote)\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"<[/a-zA-Z!?][^<>]*>")


def _recognises(head: LogHead) -> bool:
    lines = head.start.lstrip(b"\r\n").split(b"\n", 2)
    return len(lines) > 1 and _START.match(lines[0]) is not None and _HEADER.match(lines[1].lstrip(b">")) is not None


def _read(source: LogFile, scope: ImportScope) -> Iterator[bytes]:
    with source.open() as file:
        for number, (mail, is_whole) in enumerate(_mails(file), start=1):
            if not is_whole:
                scope.leave_out(_CUT)
            yield from mail_events(mail, scope, f"{log.file_name(source.name)}, mail {number}")


MBOX = LogFormat("mbox", "a mailbox (mbox)", _recognises, _read)


def _mails(file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yield each mail without its `From ` line, and whether it is complete."""
    mail: list[bytes] = []
    size_bytes, has_begun, is_after_blank = 0, False, True
    for line in bounded_lines(file, _LINE_BYTES):
        if is_after_blank and _START.match(line):
            if has_begun:
                yield b"\n".join(mail), size_bytes <= _MAIL_BYTES
            mail, size_bytes, has_begun, is_after_blank = [], 0, True, False
            continue
        is_after_blank = not line.strip()
        size_bytes += len(line) + 1
        if size_bytes <= _MAIL_BYTES:
            mail.append(line[1:] if _ESCAPED.match(line) else line)
    if has_begun:
        yield b"\n".join(mail), size_bytes <= _MAIL_BYTES


def mail_events(mail: bytes, scope: ImportScope, where: str) -> Iterable[bytes]:
    """Return a mail as a message of its thread. The id of a thread is that of the mail that began it."""
    try:
        parsed = BytesParser(policy=compat32).parsebytes(mail)
    except RecursionError:
        return [log.broken(where, "is nested too deeply", mail)]
    subject, sender = _header(parsed, "Subject"), _header(parsed, "From")
    body, quoted = _unquoted(_body(parsed))
    scope.leave_out(_QUOTED, quoted)
    text = "\n".join(part for part in (body, *_files(parsed)) if part)
    if not text and not subject:
        return scope.leave_out(log.EMPTY)
    if (time := _time(parsed)) is None:
        return [log.broken(where, "has no date", mail)]
    own_ids = _ids(parsed, "Message-ID")
    mail_id = own_ids[0] if own_ids else f"mail-{hashlib.sha256(mail.strip()).hexdigest()[:32]}"
    thread = next((ids[0] for name in ("References", "In-Reply-To") if (ids := _ids(parsed, name))), mail_id)
    name, address = next(iter(getaddresses([sender])), ("", ""))
    shows_subject = not text or thread == mail_id  # a reply repeats the subject of its thread
    return scope.message_events(
        scope.user_id,
        message_id=mail_id,
        session=_header(parsed, "X-GM-THRID") or thread,
        role="user",
        content="\n\n".join(filter(None, (subject if shows_subject else "", text))),
        time=time,
        name=log.valid_name(name, address, sender),
        metadata={"source": "mbox", "subject": subject[:500], "from": address[:500]},
    )


def _header(mail: Message, name: str) -> str:
    """Return the decoded text of a header; the text as it is if its charset is unknown."""
    written = str(mail.get(name) or "")
    with suppress(HeaderParseError, LookupError, ValueError):
        written = str(make_header(decode_header(written)))
    return " ".join(written.encode("utf-8", "replace").decode().split())


def _ids(mail: Message, name: str) -> list[str]:
    return [one.strip("<>") for one in _IDS.findall(str(mail.get(name) or ""))]


def _time(mail: Message) -> int | None:
    with suppress(ValueError, TypeError, IndexError, OverflowError):
        return int(parsedate_to_datetime(str(mail["Date"])).timestamp() * 1000)
    return None


def _body(mail: Message) -> str:
    """Return the plain texts, or else the HTML as text. Attached mails are not read."""
    found: dict[str, list[str]] = {"text/plain": [], "text/html": []}
    for part in _parts(mail):
        if part.get_content_type() in found and part.get_filename() is None:
            found[part.get_content_type()].append(_text(part))
    plain = "\n".join(text.strip() for text in found["text/plain"] if text.strip())
    return plain or "\n".join(map(_text_of_html, found["text/html"])).strip()


def _parts(mail: Message) -> Iterator[Message]:
    """Yield the leaf parts of a mail. An attached mail is one part."""
    stack: list[Message] = [mail]
    while stack:
        part = stack.pop()
        if part.is_multipart() and part.get_content_maintype() == "multipart":
            stack += reversed([one for one in part.get_payload() if isinstance(one, Message)])
        else:
            yield part


def _text(part: Message) -> str:
    content = part.get_payload(decode=True)
    if not isinstance(content, bytes):
        return ""
    try:
        return content.decode(part.get_content_charset() or "utf-8", "replace")
    except (LookupError, ValueError):
        return content.decode("utf-8", "replace")


def _files(mail: Message) -> Iterator[str]:
    for part in _parts(mail):
        with suppress(HeaderParseError, LookupError, ValueError, TypeError):
            if name := log.valid_name(part.get_filename()):
                yield f"[file: {name}]"


def _unquoted(body: str) -> tuple[str, int]:
    """Return the text without the quoted lines of earlier mails, and the number of these lines."""
    lines: list[str] = []
    quoted = 0
    for line in body.replace("\r\n", "\n").split("\n"):
        if not _QUOTE.match(line):
            lines.append(line)
            continue
        if lines and _ATTRIBUTION.fullmatch(lines[-1]) and lines[-1].strip():
            lines.pop()
        quoted += 1
    return "\n".join(lines).strip(), quoted


def _text_of_html(text: str) -> str:
    """Return the text of HTML, one line per block. Each pattern scans the text once, even with unclosed tags."""
    text = _INVISIBLE.sub("", text.replace("\n", " "))
    text = html.unescape(_TAG.sub("", _BLOCK.sub("\n", text)))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line)
