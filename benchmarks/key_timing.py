"""Whether the time that a refusal takes tells anything of a key: an unknown one, one with a wrong secret, and secrets
whose hash is wrong from the first byte on or in its last byte alone.

    python -m benchmarks.key_timing

Medians of one process, the cases in turn, so that whatever slows down one slows down all.
"""

import statistics
import time
from collections.abc import Mapping
from contextlib import suppress

from recallflow.control import ApiKey
from recallflow.credentials import ApiKeyText, hash_of, new_salt
from recallflow.decisions import History
from recallflow.errors import InvalidRecord
from recallflow.operators.api_keys import ApiKeys

TENANT = "acme"
ROUNDS = 20_000
DIGITS = "0123456789abcdef"


def measure(rounds: int = ROUNDS) -> dict[str, float]:
    """Median time of a refusal in microseconds, by case."""
    decisions = History()
    keys = ApiKeys(decisions)
    cases = {
        "no such key": ApiKeyText.new().text(),
        "wrong from the first byte on": _known(decisions, 0),
        "wrong in the last byte": _known(decisions, -1),
        "the key of another tenant": _known(decisions, None, "globex"),
    }
    taken: Mapping[str, list[int]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case, text in cases.items():
            began = time.perf_counter_ns()
            with suppress(InvalidRecord):
                keys.grant(text, TENANT, 1)
            taken[case].append(time.perf_counter_ns() - began)
    return {case: statistics.median(times) / 1_000 for case, times in taken.items()}


def _known(decisions: History, wrong: int | None, tenant_id: str = TENANT) -> str:
    """The text of a key that is stored, with a hash that is `wrong` at a place, if at any."""
    key, salt = ApiKeyText.new(), new_salt()
    digits = [*hash_of(salt, key.secret)]
    if wrong is not None:
        digits[wrong] = DIGITS[DIGITS.index(digits[wrong]) - 1]
    decided = {"tenant_id": tenant_id, "type": "api_key", "name": key.name, "salt": salt, "hash": "".join(digits)}
    decisions.add(0, ApiKey.model_validate(decided))
    return key.text()


if __name__ == "__main__":
    for case, median_us in measure().items():
        print(f"{case:30} {median_us:6.2f} µs")
