"""What is pickled with a checksum, and checked when it is unpickled.

Bytewax's recovery store has no checksums, and an offset of which a byte is another one still unpickles.
"""

import pickle
import zlib
from typing import Any

from recallflow.errors import StorageError


class Checked:
    """What Bytewax keeps as a snapshot. Unpickling it raises StorageError where it is not what was pickled."""

    __slots__ = ()

    def _fields(self) -> tuple[Any, ...]:
        """What makes it anew. By default, the slots of a dataclass."""
        return tuple(getattr(self, name) for name in self.__dataclass_fields__)  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        # The class too is in what is checked: beside it stands the name of one function only.
        data = pickle.dumps((type(self), self._fields()))
        return _restored, (zlib.crc32(data), data)


def unpickled(data: bytes) -> Any:
    """A snapshot, or None for what keeps none. Raises StorageError where it is neither, whatever its bytes are."""
    try:
        found = pickle.loads(data)  # noqa: S301 ours
    except StorageError:
        raise
    except Exception as error:  # unpickling raises anything
        raise StorageError(f"a snapshot cannot be read: {error}") from error
    if not isinstance(found, Checked | None):
        raise StorageError(f"a snapshot holds {type(found).__name__}")
    return found


def _restored(checksum: int, data: bytes) -> Checked:
    if zlib.crc32(data) != checksum:
        raise StorageError("a snapshot is not what was written")
    make, fields = pickle.loads(data)  # noqa: S301 ours
    restored: Checked = make(*fields)
    return restored
