"""Brings finished calls to the worker."""

import threading
from collections import deque
from dataclasses import dataclass
from itertools import count

numbers = count()  # of steps and calls; an earlier run in this process may still have calls under way


@dataclass(frozen=True, slots=True)
class Completion:
    """Says that a call has finished: an input of the operator."""

    step: int
    key: str
    call: int


class Completions:
    """The calls that have finished and were not emitted yet. Any number of runtimes may put completions here, and any
    number of workers emit them: an exchange routes each to the logic of its key.

    `wake` is set with each. A source that waits for input of its own sets the same event when there is some. Whoever
    waits for the event clears it first, and then looks for both input and completions.
    """

    def __init__(self, wake: threading.Event | None = None) -> None:
        self.wake = wake or threading.Event()
        self._finished: deque[Completion] = deque()

    def put(self, completion: Completion) -> None:
        self._finished.append(completion)
        self.wake.set()

    def pop_all(self) -> list[Completion]:
        popped: list[Completion] = []
        try:
            while True:
                popped.append(self._finished.popleft())
        except IndexError:  # a check beforehand would not do: another worker may pop the last one in between
            return popped
