"""The key that protects a state directory's own secret: whoever runs the engine has it. It is never stored there."""

from typing import Protocol


class MasterKey(Protocol):
    """It is asked once when a directory is made or opened, and not again while the engine runs."""

    @property
    def name(self) -> str:
        """Which key it is, for people: no secret, and another one for another key."""
        ...

    def wrap(self, secret: bytes) -> bytes:
        """The secret, sealed. Raises MasterKeyError."""
        ...

    def unwrap(self, wrapped: bytes) -> bytes:
        """What was wrapped. Raises MasterKeyError, also where another key wrapped it."""
        ...
