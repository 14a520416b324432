"""Admission of records: signing keys of tokens, trusted issuers, and checks of requests before they are records."""

import logging
import threading
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
from recallflow.flows.runner import now_ms
from recallflow.flows.settings import AuthSettings
from recallflow.operators.authorise import Authoriser, Trust
from recallflow.operators.grants import Issuer
from recallflow.parsing import parse_control
from recallflow.process import background_thread
from recallflow.records import Position, Record

if TYPE_CHECKING:
    from recallflow.connectors.jwks import KeySource

KIND = "token_key"
SENDER = "recallflow run"
RETRY_S = 30.0  # the longest wait after a failed refresh
Announce = Callable[[Sequence[TokenKey]], None]
NO_POSITION = Position("gateway", 0, 0)  # the position of a record that is not in a log yet
Failure = Callable[[], Exception | None]  # returns the error that stopped the reading of decisions, if there is one

_log = logging.getLogger(__name__)


def key_source(auth: AuthSettings) -> "KeySource | None":
    """Return the reader of the key set that `auth.jwks` names. Raise UsageError."""
    if auth.jwks is None:
        return None
    from recallflow.connectors.jwks import open_jwks  # an HTTP client takes a while to import

    return open_jwks(auth.jwks)


@dataclass(eq=False)
class TokenKeys:
    """A periodic comparison of the configured signing keys with those in the log. Differences become control events."""

    auth: AuthSettings
    source: "KeySource | None"  # the key set, if one is configured
    history: ControlHistory  # the control events, with the keys announced so far
    secrets: MutableMapping[str, bytes]  # by key fingerprint; new ones are added before their keys are announced
    announce: Announce

    def __post_init__(self) -> None:
        self._refresh_s = self.auth.jwks_refresh_s
        self._own = [] if self.auth.secret is None else [SigningKey.of_secret(self.auth.secret.encode())]
        self._missing: set[str] = set()  # names of announced keys that the last refresh did not find
        self._reported: Collection[str] = ()  # problems with keys in the last refresh
        self._error: Exception | None = None
        self.stopping = threading.Event()

    def load(self) -> None:
        """Read the keys before any record that may need them. Raise SinkError if they cannot be announced. Raise
        SourceError if a key file cannot be read, or if an address cannot be read and no signing key is known."""
        try:
            self.refresh()
        except SourceError as error:
            if self.source is not None and not self.source.is_remote:
                raise
            if not self._own and not self._announced():
                raise SourceError(f"{error}; no signing key is known yet, so no token can be verified") from None
            _log.warning("%s; tokens are verified with the known keys", error)

    def check(self, _: object) -> None:
        """Raise SourceError if the refresh thread has failed."""
        if self._error is not None:
            raise SourceError(f"the refresh of signing keys has stopped: {self._error}") from self._error

    def refresh(self) -> None:
        """Compare the keys once, and announce the differences. Raise SourceError if the key set cannot be read: in that
        case, configured secrets are still announced, and no key is revoked."""
        read_error: SourceError | None = None
        read = Jwks([], [])
        try:
            if self.source is not None:
                read = self.source.read()
        except SourceError as error:
            read_error = error
        configured = {key.name: key for key in (*read.keys, *self._own)}
        self.secrets.update({key.fingerprint: key.secret for key in configured.values() if key.secret is not None})
        announced = self._announced()
        revoked = [name for name in configured if name not in announced and self._is_revoked(name)]
        problems = (f"{name} was revoked, and a revoked key stays invalid: give it another kid" for name in revoked)
        self._report([*read.problems, *problems])
        known = {name: key.fingerprint for name, key in announced.items()}
        new = [key for name, key in configured.items() if name not in revoked and known.get(name) != key.fingerprint]
        events = [self._event(key) for key in new]
        if read_error is None:
            events += self._revocations({*configured, *read.invalid_kids}, announced)
        if events:
            self.announce(events)
        for event in events:
            _log.info("signing key %s (%s) is %s", event.name, event.algorithm, "revoked" if event.revoked else "new")
        if read_error is not None:
            raise read_error

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

    def _announced(self) -> dict[str, TokenKey]:
        """Return the announced keys that are not revoked."""
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

    def _revocations(self, configured: Collection[str], announced: Mapping[str, TokenKey]) -> list[TokenKey]:
        """Return the revocations of missing keys. A remote key set must lack a key twice in a row, because a server may
        lag, and a revocation is final."""
        # Without a configured JWKS, public keys in the log are not revoked.
        missing = {name for name, key in announced.items() if name not in configured and (self.source or not key.jwk)}
        is_remote = self.source is not None and self.source.is_remote
        revoked, self._missing = missing & self._missing if is_remote else missing, missing
        changes = {"revoked": True, **self._origin("it is gone")}
        return [announced[name].model_copy(update=changes) for name in sorted(revoked)]

    def _event(self, key: SigningKey) -> TokenKey:
        fields = {name: getattr(key, name) for name in ("name", "algorithm", "jwk", "fingerprint")}
        origin = self._origin("it is in auth.jwks" if key not in self._own else "it is auth.secret")
        return TokenKey.model_validate({"type": KIND, "tenant_id": ALL_TENANTS} | fields | origin)

    def _origin(self, why: str) -> dict[str, object]:
        return {"timestamp": now_ms(), "by": SENDER, "why": why}


@contextmanager
def follow_token_keys(
    auth: AuthSettings, history: ControlHistory, secrets: MutableMapping[str, bytes], announce: Announce
) -> Iterator[TokenKeys | None]:
    """Announce the configured signing keys, and later differences, within the block. Yield None if there are none."""
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
    """Checks of requests by the decisions in force now. Each raises SourceError if the reading of decisions failed."""

    def __init__(self, authoriser: Authoriser, failure: Failure = lambda: None) -> None:
        self._authoriser, self._failure = authoriser, failure

    def check(self, event: Event, headers: Headers) -> None:
        self._authoriser.check(self._record(headers), event)

    def ids(self, headers: Headers) -> dict[str, str]:
        return self._authoriser.ids(self._record(headers))

    def authenticate(self, headers: Headers) -> None:
        self._authoriser.authenticate(self._record(headers))

    def check_tenant(self, tenant_id: str, headers: Headers, *, sends: bool) -> str | None:
        return self._authoriser.check_tenant(self._record(headers), tenant_id, sends=sends)

    def _record(self, headers: Headers) -> Record:
        if (error := self._failure()) is not None:
            raise SourceError(f"the reading of decisions has stopped: {error}")
        return record_now(headers)


def record_now(headers: Headers) -> Record:
    return Record(NO_POSITION, b"", now_ms(), headers=headers)


def read_control_file(path: Path | None) -> ControlHistory:
    """Return the control events of a file with one event per line. Raise UsageError with line and field."""
    history = ControlHistory()
    try:
        lines = [] if path is None else path.read_bytes().splitlines()
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
