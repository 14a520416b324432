"""File of a replay's refused records. A repeated replay adds each line of a log once."""

from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import orjson

from recallflow.errors import RecallflowError
from recallflow.flows.embedded import rejection
from recallflow.outputs import DeadLetter
from recallflow.private_files import open_private


class Rejects:
    """Rejects file. Records that it held at opening are not added again; an incomplete last line is removed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: set[bytes] = set()
        self._whole_bytes = 0
        with suppress(OSError):  # a missing file; the first `note` reports one that is not writable
            self._read()
        self._opened = False

    def note(self, line: int, letter: DeadLetter, log: str | None = None) -> None:
        """Add a refused line of a log, unless an earlier replay did. `log` is the name of one of several logs."""
        record = letter.record.value.decode(errors="replace")
        if _name(line, record, log) in self._known:
            return
        named = {} if log is None else {"log": log}
        try:
            with open_private(self.path, "ab") as file:
                if not self._opened:
                    file.truncate(self._whole_bytes)
                    self._opened = True
                file.write(orjson.dumps(rejection(line, letter) | named | {"record": record}) + b"\n")
        except OSError as error:
            raise RecallflowError(f"cannot write {self.path}: {error.strerror}; give --rejects FILE") from error

    def _read(self) -> None:
        with self.path.open("rb") as file:
            for noted in file:
                if not noted.endswith(b"\n"):
                    return
                self._whole_bytes += len(noted)
                with suppress(ValueError, KeyError, TypeError):  # line of another program
                    rejected = orjson.loads(noted)
                    self._known.add(_name(rejected["line"], rejected["record"], rejected.get("log")))


def _name(line: int, record: str, log: str | None) -> bytes:
    """Return a digest of a line and its content: another log may have the same name."""
    return blake2b(orjson.dumps([line, record, log]), digest_size=16).digest()
