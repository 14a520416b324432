"""Extractive summaries of categories that have no stored summary, from memories that have the category or get it by
rules.

The category of a memory without one is the first of its topics, tags and kind that names a configured category.
Otherwise it is its first topic, else its first tag, else its kind. The kinds `message` and `fact` give no category. The
layers `rule` and `working` are skipped, because a context includes their memories whole.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from recallflow.operators.redaction import RowsReader
from recallflow.operators.summaries import MEMORIES, Summaries
from recallflow.state.arrays import Places
from recallflow.state.index import OwnerIndex
from recallflow.state.rows import MemoryRow

CATEGORIES = 16  # per context
UNCATEGORISED = 200  # number of the newest memories without a category to which rules apply
PLAIN = ("message", "fact")
SUMMARISED_LAYER = "long_term"


def category_of(row: MemoryRow, configured: Mapping[str, str]) -> str | None:
    """Return the category that a memory has, or that rules give it.

    Args:
        configured: the tenant's categories by case-folded name.
    """
    if row.category is not None:
        return row.category
    said = [*row.topics, *row.tags, *([] if row.kind in PLAIN else [row.kind])]
    known = (configured[name.casefold()] for name in said if name.casefold() in configured)
    return next(known, next(iter(said), None))


def summed_up(
    index: OwnerIndex,
    permitted: Places,
    rows: RowsReader,
    besides: Sequence[str],
    wanted: Sequence[str] | None,
    configured: Iterable[str],
) -> dict[str, str]:
    """Return an extractive summary per category, by name, of the permitted memories of the long-term layer.

    Args:
        besides: categories to skip.
        wanted: categories to summarise; None for all.
        configured: names of the tenant's categories.
    """
    by_name = {name.casefold(): name for name in configured}
    summaries, facts = Summaries(index, rows, CATEGORIES), index.conversation.facts
    permitted = permitted[facts["layer"][permitted] == index.names.known(SUMMARISED_LAYER)]
    categories = facts["category"][permitted]
    groups = defaultdict[str, list[tuple[MemoryRow, int]]](list)
    for number in np.unique(categories[categories >= 0]).tolist():
        name = index.names.strings[number]
        if name not in besides and (wanted is None or name in wanted) and len(groups) < CATEGORIES:
            groups[name] += summaries.telling(permitted[categories == number], MEMORIES)
    without = _uncategorised(index, permitted[categories < 0])
    for row, language in summaries.telling(without, UNCATEGORISED):
        found = category_of(row, by_name)
        if found is None or found in besides or (wanted is not None and found not in wanted):
            continue
        if len(groups.get(found, ())) < MEMORIES and (found in groups or len(groups) < CATEGORIES):
            groups[found].append((row, language))
    # Facts have no position in a conversation, so that the summary orders memories by time.
    for group in groups.values():
        group.sort(key=lambda read: (read[0].created_ms, read[0].seq))
    found_texts = {name: summaries.of_rows(groups[name]) for name in sorted(groups)}
    return {name: text for name, text in found_texts.items() if text}


def _uncategorised(index: OwnerIndex, places: Places) -> Places:
    """Return the newest positions whose memory may have topics or tags. Messages have neither."""
    noted = places[index.conversation.facts["role"][places] < 0]
    newest = np.argsort(-index.conversation.facts["seq"][noted], kind="stable")[:UNCATEGORISED]
    return noted[np.sort(newest)]
