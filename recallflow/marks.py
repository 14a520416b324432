"""What goes through the dataflow among the records: whose a partition is, and up to where it was read."""

from typing import NamedTuple


class Open(NamedTuple):
    """From here on a state partition is this process's: its records follow."""

    partition: int


class Mark(NamedTuple):
    """All records of a state partition that were given are before it: how far it is, is to be kept. `number`: of the
    partition's marks, by which what was given is known; `place`: how far everybody knows it to be, encoded, None where
    that did not change; `last`: the partition is given up here."""

    partition: int
    number: int
    place: bytes | None = None
    last: bool = False


Signal = Open | Mark
