"""Closing what may fail to close."""

from collections.abc import Callable


class Closing:
    """Runs what closes a part, and keeps what goes wrong. Bytewax closes parts while an error is on its way, too: a
    second one would end the process there and then (SIGABRT), without a word of either."""

    def __init__(self) -> None:
        self._error: BaseException | None = None

    def __call__(self, close: Callable[[], None]) -> None:
        try:
            close()
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._error = self._error or error

    def check(self) -> None:
        """Raises what went wrong first."""
        if self._error is not None:
            raise self._error
