"""Gates of recall_quality: figures that must be reached, given as numbers or as another engine's."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.recall_report import Result

EVERY = "*"
_GATE = re.compile(r"(?P<kind>[^:=]+):(?P<measure>[^:=]+)=(?P<least>.+)")


class Gate(NamedTuple):
    """What a measure of a kind must be at least: a number, or an engine's figure."""

    kind: str
    measure: str
    least: float | str


def parse_gate(text: str) -> Gate:
    """Reads KIND:NAME=VALUE."""
    found = _GATE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is no KIND:NAME=VALUE, such as assistant:any@10=0.91")
    kind, measure, least = found.groups()
    try:
        return Gate(kind, measure, float(least))
    except ValueError:
        return Gate(kind, measure, least)


def missed(gates: Sequence[Gate], runs: Mapping[str, Sequence[Result]], engine: str) -> Iterator[str]:
    """What the engine falls short of, as the figures are printed, with three digits. A gate of what was not measured is
    missed."""
    for gate in gates:
        kinds = [*runs] if gate.kind == EVERY else [gate.kind]
        for kind in kinds:
            results = {one.engine: one.figures["overall"] for one in runs.get(kind, ()) if not one.skipped}
            reached = results.get(engine, {}).get(gate.measure)
            least = results.get(gate.least, {}).get(gate.measure) if isinstance(gate.least, str) else gate.least
            if reached is None or least is None:
                yield f"{kind}:{gate.measure}={gate.least} was not measured"
            elif round(reached, 3) < round(least, 3):
                yield f"{kind}:{gate.measure} {reached:.3f} < {least:.3f}"
