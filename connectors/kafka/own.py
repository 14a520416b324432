"""Partitions that are assigned by hand: each range is a static member of the deployment's group, named by what it owns.

The members assign nothing to each other, but the group knows them all: two whose ranges overlap see each other there.
"""

import re
from collections.abc import Collection, Iterable

from recallflow.ranges import parse_ranges, ranges_of

_PREFIX = "own-"
_NAME = re.compile(_PREFIX + r"\d+(-\d+)?(_\d+(-\d+)?)*")
NAME_CHARACTERS = 249  # what a broker takes


def name_of(own: Collection[int]) -> str:
    """`own-0-7_9`: a broker takes letters, digits, `.`, `_` and `-`."""
    return _PREFIX + ranges_of(own).replace(",", "_")


def overlapping(own: Collection[int], names: Iterable[str]) -> str | None:
    """What another member of the group owns of ours, as it was given; None where there is no such member."""
    for name in names:
        if name == name_of(own) or not _NAME.fullmatch(name):
            continue
        text = name.removeprefix(_PREFIX).replace("_", ",")
        if parse_ranges(text) & frozenset(own):
            return text
    return None
