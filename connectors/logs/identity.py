"""The name that a log has in positions: as long as a log keeps it, a replay goes on where an earlier one stopped."""

import hashlib
import os

from recallflow.connectors.logs.documents import is_document
from recallflow.connectors.logs.model import Scope, start_of
from recallflow.connectors.logs.registry import Log
from recallflow.connectors.logs.sources import Source

_LINE_BYTES = 64 * 1024
_END_BYTES = 64 * 1024
_GROWING = ("events", "openai")  # of lines, to which others are appended


def log_name(log: Log, scope: Scope) -> str:
    """A file of lines is known by its path and its first line, so that one that grew is read on. Everything else is
    known by what it holds: a later export of the same conversations is another log, whose events have ids of their own
    and apply once. Where the log names no owners, the same log of another owner is another one."""
    given = "" if log.format.name == "events" else repr((log.format.name, log.columns, _owner(scope)))
    if log.source.path is not None and log.format.name in _GROWING:
        with log.source.open() as file:
            start = start_of(file)
        if not is_document(start):
            first = start.partition(b"\n")[0][:_LINE_BYTES].rstrip(b"\r\n")
            return _topic(os.fsencode(log.source.path.resolve()) + f"\n{given}".encode() + first)
    return _topic(given.encode() + _content(log.source))


def _owner(scope: Scope) -> tuple[object, ...]:
    return scope.tenant_id, scope.user_id, scope.user_given, scope.environment, scope.date_order, str(scope.zone)


def _topic(named: bytes) -> str:
    return "file-" + hashlib.sha256(named).hexdigest()[:16]


def _content(source: Source) -> bytes:
    """Size, beginning and end of each file: nobody waits until gigabytes are hashed."""
    digest = hashlib.sha256()
    for one in source.members() or (source,):
        digest.update(f"{one.name}\n{one.bytes}\n{one.checksum}\n".encode())
        if one.checksum is None and one.open_raw is not None:
            with one.open_raw() as file:
                digest.update(file.read(_END_BYTES) or b"")
                if one.bytes > _END_BYTES:
                    file.seek(-_END_BYTES, os.SEEK_END)
                    digest.update(file.read(_END_BYTES) or b"")
    return digest.digest()
