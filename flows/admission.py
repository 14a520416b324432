"""Admission of records: signing keys of tokens, trusted issuers, and live authorisation decisions."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recallflow.control import ALL_TENANTS, ControlHistory, TokenKey
from recallflow.credentials import Headers, Jwks, SigningKey
from recallflow.errors import InvalidRecord, SinkError, SourceError, UsageError
from recallflow.events import Event
from recallflow.fields import EPOCH_MS_MAX
from recallflow.flows.settings import AuthSettings
from recallflow.operators.authorise import Authoriser, Trust
from recallflow.operators.grants import Issuer
from recallflow.parsing import parse_control
from recallflow.process import background_thread
from recallflow.records import Position, Record

if TYPE_CHECKING:
    from recallflow.connectors.jwks import KeySource

KIND = "token_key"
BY = "recallflow run"
RETRY_S = 30.0  # the longest wait after a failed refresh
Announce = Callable[[Sequence[TokenKey]], None]
NOWHERE = Position("gateway", 0, 0)  # the position of a record that is not in a log yet
# Returns the error that stopped the reading of decisions, if there is one.
Failure = Callable[[], Exception | None]

_log = logging.getLogger(__name__)


def key_source(auth: AuthSettings) -> "KeySource | None":
    """Return the reader of the key set that `auth.jwks` names. Raise UsageError."""
    if auth.jwks is None:
        return None
    from recallflow.connectors.jwks import open_jwks  # an HTTP client takes a while to import

    return open_jwks(auth.jwks)


@dataclass(eq=False)
class TokenKeys:
    """A periodic comparison of the current signing keys with those in the log. It announces every difference."""

    auth: AuthSettings
    source: "KeySource | None"  # the key set, if one is configured
    history: ControlHistory  # the decisions, with the keys announced so far
    secrets: MutableMapping[str, bytes]  # by key fingerprint; new ones are added before their keys are announced
    announce: Announce

    def __post_init__(self) -> None:
        self._refresh_s = self.auth.jwks_refresh_s
        self._own = [] if self.auth.secret is None else [SigningKey.of_secret(self.auth.secret.encode())]
        self._missing: set[str] = set()  # names that the last refresh did not find
        self._reported: Collection[str] = ()  # problems of keys in the last refresh
        self._error: Exception | None = None
        self.stopping = threading.Event()

    def load(self) -> None:
        """Read the keys before any record that may need them. Raise SinkError if they cannot be announced, and
        SourceError if a key file cannot be read, or no key is known and an address cannot be read."""
        try:
            self.refresh()
        except SourceError as error:
            if self.source is not None and not self.source.is_remote:
                raise
            if not self._own and not self._held():
                raise SourceError(f"{error}; no signing key is known yet, so no token can be verified") from None
            _log.warning("%s; tokens are verified with the known keys", error)

    def check(self, _: object) -> None:
        """Raise SourceError if the refresh thread has failed."""
        if self._error is not None:
            raise SourceError(f"the refresh of signing keys has stopped: {self._error}") from self._error

    def refresh(self) -> None:
        """Compare the keys once, and announce the differences. Raise SourceError if keys cannot be read: then
        configured secrets are still announced, and no key is revoked."""
        trouble: SourceError | None = None
        read = Jwks([], [])
        try:
            if self.source is not None:
                read = self.source.read()
        except SourceError as error:
            trouble = error
        given = {key.name: key for key in (*read.keys, *self._own)}
        self.secrets.update({key.fingerprint: key.secret for key in given.values() if key.secret is not None})
        held = self._held()
        back = [name for name in given if name not in held and self._is_revoked(name)]
        revoked = (f"{name} was revoked, and a revoked key stays invalid: give it another kid" for name in back)
        self._report([*read.problems, *revoked])
        known = {name: key.fingerprint for name, key in held.items()}
        news = [key for name, key in given.items() if name not in back and known.get(name) != key.fingerprint]
        events = [self._event(key) for key in news]
        if trouble is None:
            events += self._revocations({*given, *read.invalid_kids}, held)
        if events:
            self.announce(events)
        for event in events:
            _log.info("signing key %s (%s) is %s", event.name, event.algorithm, "revoked" if event.revoked else "new")
        if trouble is not None:
            raise trouble

    def run(self) -> None:
        """Refresh the keys periodically."""
        wait_s = self._refresh_s
        while not self.stopping.wait(wait_s):
            wait_s = self._refresh_s
            try:
                self.refresh()
            except (SourceError, SinkError) as error:
                _log.warning("%s; tokens are verified with the known keys", error)
                wait_s = min(RETRY_S, wait_s)
            except Exception as error:  # noqa: BLE001 - `check` raises it on the flow's thread
                self._error = error
                return

    def _held(self) -> dict[str, TokenKey]:
        names = [name for name in self.history.names(ALL_TENANTS, KIND) if not self._is_revoked(name)]
        found = {name: self.history.as_of(ALL_TENANTS, KIND, name, EPOCH_MS_MAX) for name in names}
        return {name: key for name, key in found.items() if isinstance(key, TokenKey)}

    def _is_revoked(self, name: str) -> bool:
        return self.history.is_revoked(ALL_TENANTS, KIND, name, EPOCH_MS_MAX)

    def _report(self, problems: Collection[str]) -> None:
        for problem in problems:
            if problem not in self._reported:
                _log.warning("auth.jwks: %s", problem)
        self._reported = problems

    def _revocations(self, given: Collection[str], held: Mapping[str, TokenKey]) -> list[TokenKey]:
        """Return revocations. A remote set must lack a key twice in a row: a server may lag, and a revocation is
        final."""
        # Without a configured JWKS, public keys in the log are not revoked.
        gone = {name for name, key in held.items() if name not in given and (self.source or key.jwk is None)}
        sure = gone & self._missing if self.source is not None and self.source.is_remote else gone
        self._missing = gone
        return [held[name].model_copy(update={"revoked": True, **self._origin("it is gone")}) for name in sorted(sure)]

    def _event(self, key: SigningKey) -> TokenKey:
        fields = {name: getattr(key, name) for name in ("name", "algorithm", "jwk", "fingerprint")}
        origin = self._origin("it is in auth.jwks" if key not in self._own else "it is auth.secret")
        return TokenKey.model_validate({"type": KIND, "tenant_id": ALL_TENANTS} | fields | origin)

    def _origin(self, why: str) -> dict[str, object]:
        return {"timestamp": now_ms(), "by": BY, "why": why}


@contextmanager
def follow_token_keys(
    auth: AuthSettings, history: ControlHistory, secrets: MutableMapping[str, bytes], announce: Announce
) -> Iterator[TokenKeys | None]:
    """Announce the configured signing keys, and later differences, within the block. Yield None without keys."""
    if auth.mode == "off" or (auth.jwks is None and auth.secret is None):
        yield None
        return
    token_keys = TokenKeys(auth, key_source(auth), history, secrets, announce)
    token_keys.load()
    with background_thread(token_keys.run, "token-keys", token_keys.stopping):
        yield token_keys


def trust_of(auth: AuthSettings, secrets: Mapping[str, bytes]) -> Trust:
    """Return the trust settings. `secrets` maps fingerprints to secrets, and may grow later."""
    return Trust(auth.mode, Issuer(auth.issuer, auth.audience, auth.tenant_claim), secrets)


def known_secrets(auth: AuthSettings) -> dict[str, bytes]:
    """Return the secrets of `auth.secret` and of a JWKS file by fingerprint, without `TokenKeys`. Raise SourceError."""
    if auth.mode == "off":
        return {}
    keys = [] if auth.secret is None else [SigningKey.of_secret(auth.secret.encode())]
    source = key_source(auth)
    if source is not None and not source.is_remote:
        keys += source.read().keys
    return {key.fingerprint: key.secret for key in keys if key.secret is not None}


class LiveAdmission:
    """Admission by the decisions in force now. If reading of decisions has failed, it raises SourceError."""

    def __init__(self, authoriser: Authoriser, failure: Failure = lambda: None) -> None:
        self._authoriser, self._failure = authoriser, failure

    def check(self, event: Event, headers: Headers) -> None:
        self._authoriser.check(self._record(headers), event)

    def ids(self, headers: Headers) -> dict[str, str]:
        return self._authoriser.ids(self._record(headers))

    def authenticate(self, headers: Headers) -> None:
        self._authoriser.authenticate(self._record(headers))

    def check_tenant(self, tenant_id: str, headers: Headers, *, decides: bool) -> str | None:
        return self._authoriser.check_tenant(self._record(headers), tenant_id, decides=decides)

    def _record(self, headers: Headers) -> Record:
        if (error := self._failure()) is not None:
            raise SourceError(f"the reading of decisions has stopped: {error}")
        return record_now(headers)


def record_now(headers: Headers) -> Record:
    return Record(NOWHERE, b"", now_ms(), headers=headers)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def read_control_file(path: Path | None) -> ControlHistory:
    """Return the control events of a file with one event per line. Raise UsageError with line and field."""
    history = ControlHistory()
    if path is None:
        return history
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"--control: cannot read {path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = parse_control(line)
        except InvalidRecord as error:
            raise UsageError(f"{path}, line {number}: {error}") from error
        history.add(event.timestamp or 0, event)
    return history
