"""What tenants may spend of a model in a day."""

import logging
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import orjson

from recallflow.errors import ModelError
from recallflow.private_files import open_private

DAY_S = 86_400
WRITTEN_EVERY_S = 1.0

_log = logging.getLogger(__name__)


class Reserved(NamedTuple):
    """Tokens of a call under way. `day`: since 1970, in UTC."""

    tenant_id: str
    tokens: int
    day: int


class Budget:
    """Tokens by tenant and day of UTC. A call reserves about what it will cost and gives back what it did not, so that
    many at once do not spend more than there is."""

    def __init__(
        self, limit: Callable[[str], int | None], epoch_s: Callable[[], float], path: Path | None = None
    ) -> None:
        """`limit`: None is none. `path`: the file that remembers the day's spending."""
        self._limit = limit
        self._epoch_s = epoch_s
        self._path = path
        self._written_s = 0.0
        self._day, self._spent = _read(path)

    def reserve(self, tenant_id: str, tokens: int) -> Reserved:
        """Raises ModelError where that is more than is left."""
        day, limit = self._begin_day(), self._limit(tenant_id)
        spent = self._spent.get(tenant_id, 0)
        if limit is not None and spent + tokens > limit:
            raise ModelError(
                "over_budget", f"{spent:,} of {limit:,} tokens are spent today, and it takes about {tokens:,}"
            )
        self._spent[tenant_id] += tokens
        return Reserved(tenant_id, tokens, day)

    def give_back(self, reserved: Reserved, tokens: int) -> None:
        """What was reserved yesterday is gone with the day; what it cost counts today."""
        taken_back = reserved.tokens if reserved.day == self._begin_day() else 0
        self._spent[reserved.tenant_id] += tokens - taken_back
        if self._epoch_s() - self._written_s >= WRITTEN_EVERY_S:
            self.write()

    def write(self) -> None:
        """What is under way counts as if it had cost what is reserved for it: after a kill nobody knows."""
        if self._path is not None and self._spent:
            self._written_s = self._epoch_s()
            new = self._path.with_suffix(".new")
            try:
                with open_private(new, "wb") as file:
                    file.write(orjson.dumps({"day": self._day, "spent": self._spent}))
                new.replace(self._path)
            except OSError as error:  # an answer that is paid for is worth more than the count
                _log.warning("%s cannot be written (%s): a restart would not know what is spent", self._path, error)

    def _begin_day(self) -> int:
        today = int(self._epoch_s() // DAY_S)
        if today != self._day:
            self._day, self._spent = today, defaultdict(int)
        return today


def _read(path: Path | None) -> tuple[int, defaultdict[str, int]]:
    """The day of a file, and what was spent on it. One that cannot be read costs a day's memory, and no start."""
    if path is None or not path.exists():
        return 0, defaultdict(int)
    try:
        found = orjson.loads(path.read_bytes())
        return int(found["day"]), defaultdict(int, {str(tenant): int(of) for tenant, of in found["spent"].items()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        _log.warning("%s cannot be read (%s): today's spending is counted from 0", path, type(error).__name__)
        return 0, defaultdict(int)
