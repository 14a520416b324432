"""What a crash run came to, in figures and in a few lines."""

from dataclasses import dataclass, field


@dataclass
class Report:
    """What a crash run came to. `static`: whether the process was a static member of its group.
    `lost`, `duplicate`, `unexpected` and `wrong` name outputs; all are to be empty."""

    static: bool
    events: int
    kills: dict[str, int]
    outputs: int = 0
    responses: int = 0
    compared: int = 0  # answers that equal the reference's at the positions they say they had applied
    unplaced: int = 0  # error answers that say no positions
    waited: int = 0  # answers given once the position they waited for was applied
    stale: int = 0  # answers to queries that could not wait longer
    lost: list[str] = field(default_factory=list)
    duplicate: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    state_equal: bool = False
    seconds: float = 0.0

    def clean(self) -> bool:
        return self.state_equal and not (self.lost or self.duplicate or self.unexpected or self.wrong)


def show(report: Report) -> None:
    """A report in a few lines."""
    kills = ", ".join(f"{count} {point}" for point, count in report.kills.items())
    member = "static" if report.static else "dynamic"
    print(f"{member} member: {report.events:,} events, kills: {kills}; {report.seconds} s")
    print(f"  outputs {report.outputs:,}: lost {len(report.lost)}, duplicate {len(report.duplicate)}", end="")
    print(f", unexpected {len(report.unexpected)}, wrong {len(report.wrong)}")
    print(f"  responses {report.responses:,}: {report.compared:,} equal the reference's at the same positions", end="")
    print(f" ({report.unplaced} errors without positions); waited {report.waited}, too long {report.stale}")
    print(f"  state {'equal' if report.state_equal else 'DIFFERENT'}")
    for kind in ("lost", "duplicate", "unexpected", "wrong"):
        for name in getattr(report, kind)[:5]:
            print(f"  {kind}: {name}")
