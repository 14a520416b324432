"""How long each step took."""

from collections.abc import Callable


class Laps:
    """Milliseconds by step, in the order the steps ended. `timer`: seconds, from any start."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self.stages_ms: dict[str, float] = {}
        self._timer = timer
        self._began_s = self._last_s = timer()

    def lap(self, step: str) -> float:
        """The step that ran since the last call has ended: how long it took, in ms."""
        now_s = self._timer()
        self.stages_ms[step] = round((now_s - self._last_s) * 1000, 3)
        self._last_s = now_s
        return self.stages_ms[step]

    def elapsed_ms(self) -> float:
        """Since the beginning."""
        return (self._timer() - self._began_s) * 1000
