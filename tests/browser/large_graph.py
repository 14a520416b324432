"""One person with so many memories, places and topics that a graph of them has thousands of nodes, as events."""

import random
from collections.abc import Iterator
from typing import Any

OWNER = {"tenant_id": "acme", "user_id": "crowd"}
START_MS = 1_767_225_600_000  # 2026-01-01
HOUR_MS = 3_600_000

_NAMES = ("Harbour", "Atlas", "Cedar", "Nova", "Orchid", "Falcon", "River", "Juniper", "Copper", "Willow")
_KINDS = ("Clinic", "Bakery", "Garden", "School", "Library", "Club", "Studio", "Market", "Museum", "Theatre")
_TOPICS = ("travel", "food", "work", "health", "family", "music", "money", "school")
_THINGS = ("the blue folder", "two tickets", "the receipts", "a lamp", "her notes", "the spare keys")


def large_graph(nodes: int) -> Iterator[dict[str, Any]]:
    """So many nodes, and a few episodes more. The same every time."""
    chance = random.Random(7)
    places = [f"{name} {kind}" for name in _NAMES for kind in _KINDS]
    for number in range(nodes - len(places) - len(_TOPICS)):
        place = places[int(chance.random() ** 2 * len(places))]
        relation = {"source": place, "type": "near", "target": chance.choice(places)}
        is_stated = chance.random() < 0.05 and relation["target"] != place
        yield OWNER | {
            "type": "memory", "id": f"c{number}", "timestamp": START_MS + number * HOUR_MS,
            "session_id": f"s{number // 40}", "content": f"Bring {chance.choice(_THINGS)} {number}",
            "entities": [{"name": place, "type": "place"}], "topics": [chance.choice(_TOPICS)],
            "relations": [relation] if is_stated else [],
        }  # fmt: skip
