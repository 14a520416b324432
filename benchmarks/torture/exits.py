"""The table of exits: how each fault may end the engine, by code and by what its last line says. Whatever else ends it
is a finding."""

import re
import signal
from dataclasses import dataclass, field

from benchmarks.torture.engine import Ended

# by docs/operations.md: 0 stopped by a signal, 1 failure, 2 usage
# outputs wait for the brokers for less than the session; a start gives up on them after 10 s
AWAY = (1, r"not delivered|Kafka")
EXITS: dict[str, list[tuple[int, str]]] = {
    "kill": [(-9, "")],
    "kill starting": [(-9, "")],
    "stop": [(0, "")],
    "pause": [],
    "pause beyond the session": [],  # it joins anew
    "second engine": [],
    "second member": [],
    "broker killed": [AWAY],
    "broker stopped": [AWAY],
    "skip": [(0, "")],
    "restore": [(0, ""), (-9, "")],
    "folder lost": [(0, "")],
    "disk full": [(1, r"(?i)file too large|no space|disk|write|IO error|cannot"), (0, "")],
    "foreign transaction": [(-9, "")],
    "give up": [(0, ""), (1, r"give-up-unanswered")],
    "oversized": [],
}


@dataclass
class Exits:
    """How the engine ended, and under what."""

    table: dict[str, int] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)

    def note(self, fault: str, ended: Ended) -> None:
        allowed = any(ended.code == code and re.search(line, ended.error) for code, line in EXITS.get(fault, []))
        name = f"{fault}: {ended.code}"
        self.table[name] = self.table.get(name, 0) + 1
        if not allowed or not (ended.plain or ended.code == -signal.SIGKILL):
            self.unexpected.append(f"{fault}: {ended}"[:2_500])
