"""Settings and state of calls to a model service: endpoint, retry policy, counters and token budgets."""

import asyncio
import logging
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

import orjson

from recallflow.errors import ModelError, ModelFailure, UsageError
from recallflow.llm import Cost, Task
from recallflow.private_files import open_private

OPENAI_URL = "https://api.openai.com/v1"
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[!-~]([\t -~]*[!-~])?")


class Endpoint(NamedTuple):
    """Address of a service. `base_url` None is OpenAI; `headers` are `NAME: VALUE`; `timeout_s` limits one attempt."""

    base_url: str | None = None
    key: str | None = None
    headers: tuple[str, ...] = ()
    timeout_s: float = 30.0

    @property
    def url(self) -> str:
        """Return the base URL. Raise UsageError if it is invalid or has a user or password, which logs would show."""
        url = self.base_url or OPENAI_URL
        try:
            parts = urlsplit(url)
            is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # an invalid port
            is_valid = False
        if not is_valid:
            raise UsageError("a model's base URL must begin with http:// or https:// and name a host")
        if "@" in parts.netloc:
            raise UsageError("a model's base URL must not contain a user or password: set the key in its own setting")
        return url

    @property
    def named_headers(self) -> Mapping[str, str]:
        """Return the headers by name. Raise UsageError for an invalid one."""
        pairs = [(name.strip(), value.strip()) for name, _, value in (header.partition(":") for header in self.headers)]
        if not all(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value) for name, value in pairs):
            raise UsageError("each header for a model must be given as NAME: VALUE")
        return dict(pairs)

    def check(self) -> None:
        """Raise UsageError for an invalid endpoint. Messages never show the values, which may be secret."""
        _ = self.url, self.named_headers
        if self.key is not None and not _HEADER_VALUE.fullmatch(self.key):
            raise UsageError("a model's key must consist of printable ASCII characters, in one line")


FIRST_WAIT_S = 0.5
MOST_WAIT_S = 60.0  # upper limit of the delay before another attempt, even if the service asks for more

WaitsForBreaker = Literal["never", "rate limits", "always"]
DailyLimit = Callable[[str], int | None]  # tenant → limit


class RetryTiming(NamedTuple):
    """Clocks and randomness. `now_s` counts from any origin, `epoch_s` from 1970; `draw` returns a number in [0, 1)."""

    now_s: Callable[[], float] = time.monotonic
    epoch_s: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    draw: Callable[[], float] = random.random


@dataclass(frozen=True)
class Policy:
    """Retry policy and limits of calls.

    `attempts` includes the first. `waits_for_breaker` decides whether a call waits or fails while the circuit breaker
    is open. With `rate limits`, it waits only if a rate limit opened the breaker, and rate-limited attempts do not
    count. `capacity` limits the calls in flight (None: unlimited); above it, calls wait with `always`, and otherwise
    fail. `daily_token_limit` returns a tenant's limit; `spending_file` keeps the spent tokens across restarts."""

    attempts: int = 1
    waits_for_breaker: WaitsForBreaker = "never"
    capacity: int | None = None
    daily_token_limit: DailyLimit = lambda _: None
    spending_file: Path | None = None
    timing: RetryTiming = field(default_factory=RetryTiming)

    def wait_s(self, failures: int, retry_after: str | None) -> float:
        """Return the delay before the next attempt: random up to a doubling bound, so that failed calls spread out,
        and at least the delay that the service asks for."""
        most_s = min(MOST_WAIT_S, FIRST_WAIT_S * 2.0 ** (failures - 1))
        return max(self.timing.draw() * most_s, self.requested_delay_s(retry_after))

    def requested_delay_s(self, retry_after: str | None) -> float:
        """Return the delay that a service asks for, in seconds or as an HTTP date; 0 without one."""
        if retry_after is None:
            return 0.0
        try:
            seconds = float(retry_after)
        except ValueError:
            try:
                seconds = parsedate_to_datetime(retry_after).timestamp() - self.timing.epoch_s()
            except (ValueError, OverflowError):
                return 0.0
        return min(MOST_WAIT_S, max(0.0, seconds))


TENANTS_NAMED = 100
OTHERS = "other"
CHARACTERS_PER_TOKEN = 4


class Meter:
    """Counters since the start. The first TENANTS_NAMED tenants have their own (metric series); others are `other`."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.breaker_open = False  # open or half-open, after repeated failures
        self.spent: defaultdict[tuple[str, Task], Cost] = defaultdict(Cost)  # by tenant and task
        self.failures: Counter[tuple[Task, ModelFailure]] = Counter()
        self._named_tenants: set[str] = set()

    def spend(self, tenant_id: str, task: Task, spent: Cost) -> None:
        """Count attempts, failed ones included."""
        if len(self._named_tenants) < TENANTS_NAMED:
            self._named_tenants.add(tenant_id)
        label = tenant_id if tenant_id in self._named_tenants else OTHERS
        self.spent[label, task] = self.spent[label, task].plus(spent)

    def fail(self, task: Task, code: ModelFailure) -> None:
        """Count a call that failed after its last attempt."""
        self.failures[task, code] += 1


def estimate_tokens(*texts: str) -> int:
    return sum(map(len, texts)) // CHARACTERS_PER_TOKEN


DAY_S = 86_400
WRITE_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


class Reservation(NamedTuple):
    """Tokens reserved for a call in flight. `day` counts from 1970 in UTC."""

    tenant_id: str
    tokens: int
    day: int


class TokenBudget:
    """Tokens spent today (UTC) by tenant. A call reserves its estimate, so that concurrent calls stay in the budget."""

    def __init__(self, limit: DailyLimit, epoch_s: Callable[[], float], path: Path | None = None) -> None:
        """`limit` returns the daily tokens of a tenant (None: unlimited). `path` is the file of today's spending."""
        self._limit, self._epoch_s, self._path = limit, epoch_s, path
        self._last_write_s = 0.0
        self._day, self._spent = 0, defaultdict[str, int](int)
        if path is not None and path.exists():
            try:
                stored = orjson.loads(path.read_bytes())
                spent = {str(tenant): int(tokens) for tenant, tokens in stored["spent"].items()}
                self._day, self._spent = int(stored["day"]), defaultdict(int, spent)
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                kind = type(error).__name__
                _log.warning("%s cannot be read (%s): today's spending is counted from 0", path, kind)

    def reserve(self, tenant_id: str, tokens: int) -> Reservation:
        """Reserve tokens of today's budget. Raise ModelError if fewer remain."""
        day, limit = self._begin_day(), self._limit(tenant_id)
        spent = self._spent.get(tenant_id, 0)
        if limit is not None and spent + tokens > limit:
            problem = f"{spent:,} of {limit:,} tokens are spent today, and this call needs about {tokens:,}"
            raise ModelError("over_budget", problem)
        self._spent[tenant_id] += tokens
        return Reservation(tenant_id, tokens, day)

    def settle(self, reservation: Reservation, used_tokens: int) -> None:
        """Replace a reservation with the used tokens. If the day (UTC) has changed since, they all count today."""
        released = reservation.tokens if reservation.day == self._begin_day() else 0
        self._spent[reservation.tenant_id] += used_tokens - released
        if self._epoch_s() - self._last_write_s >= WRITE_INTERVAL_S:
            self.write()

    def write(self) -> None:
        """Write the spending. Calls in flight count with their reservations, because a kill would lose their cost."""
        if self._path is not None and self._spent:
            self._last_write_s = self._epoch_s()
            new = self._path.with_suffix(".new")
            try:
                with open_private(new, "wb") as file:
                    file.write(orjson.dumps({"day": self._day, "spent": self._spent}))
                new.replace(self._path)
            except OSError as error:  # no reason to fail: a paid response is worth more than an exact count
                _log.warning("%s cannot be written (%s): a restart would lose today's spending", self._path, error)

    def _begin_day(self) -> int:
        today = int(self._epoch_s() // DAY_S)
        if today != self._day:
            self._day, self._spent = today, defaultdict(int)
        return today
