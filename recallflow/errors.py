"""Every error recallflow raises, as one tree.

    RecallflowError
    ├── InvalidRecord        one record is wrong: it becomes a dead letter, the flow goes on
    ├── UsageError           a command or a setting is wrong: correct the call (exit code 2)
    ├── SourceError          a log cannot be read on: removed records, missing topic or right, changed file
    ├── SinkError            an output could not be delivered: the flow stops before it would be lost
    ├── EmbedderError        a model cannot be loaded or used: check its name and path
    └── StateError           the state directory cannot be used
        ├── StateFormatError     written by another version: use that version, or rebuild
        ├── SettingsMismatch     created with other settings: use those, or rebuild
        ├── StateInUse           another process holds it: stop that process
        ├── StateBehind          older than the recovery store says: rebuild
        └── StorageError         disk full or corrupt: nothing was acknowledged that is not stored

The client's own (`DeliveryFailed`, `QueryFailed`, `QueryTimeout`) stand beside it in `recallflow.client`.

A message says what is wrong and what to do. `InvalidRecord` alone never stops a flow; a `StateError` always does.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

ErrorCode = Literal[
    "invalid_json",  # not JSON, not UTF-8, or nested too deeply
    "invalid_event",  # one or more fields are wrong
    "unknown_type",  # `type` is missing or names nothing we know
    "too_large",  # the record is over the size limit
    "wrong_dimension",  # an embedding of another size than the configured model's
    "id_conflict",  # the memory id was used before for other content
    "not_found",  # the memory named does not exist (or was forgotten)
    "unsupported",  # valid, but this version does not act on it
]


class FieldProblem(NamedTuple):
    """One wrong field. `field` is a dotted path (`entities.0.name`), or empty for the record as a whole."""

    field: str
    problem: str


class RecallflowError(Exception):
    """Base of all errors raised by recallflow."""


class InvalidRecord(RecallflowError):
    """A record that cannot be applied or answered. Carries every wrong field at once."""

    def __init__(self, code: ErrorCode, fields: Sequence[FieldProblem]) -> None:
        self.code: ErrorCode = code
        self.fields = tuple(fields)
        super().__init__(code, self.fields)

    def __str__(self) -> str:
        return "; ".join(f"{f.field}: {f.problem}" if f.field else f.problem for f in self.fields)


class UsageError(RecallflowError):
    """A command line or settings mistake."""


class SourceError(RecallflowError):
    """A log cannot be read on from where we are."""


class SinkError(RecallflowError):
    """An output was not delivered. Stopping keeps it: the next start delivers it again."""


class EmbedderError(RecallflowError):
    """An embedding model cannot be loaded or gave something else than vectors of its dimension."""


class StateError(RecallflowError):
    """The state directory cannot be used as it is."""


class StateFormatError(StateError):
    """The state directory was written in another format version."""


class SettingsMismatch(StateError):
    """The state directory was created with settings that shape what is stored, and they differ from the ones given."""


class StateInUse(StateError):
    """Another process has the state directory open."""


class StateBehind(StateError):
    """A state partition holds less than the recovery store says was applied: events would be missing without a word."""


class StorageError(StateError):
    """RocksDB could not read or write: disk full, permission, corruption."""
