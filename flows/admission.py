"""Admission of records: signing keys of tokens, trusted issuers, and decisions in force at this moment."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from recallflow.background import beside
from recallflow.control import ALL_TENANTS, TokenKey
from recallflow.credentials import Headers
from recallflow.decisions import History
from recallflow.errors import SinkError, SourceError
from recallflow.events import Event
from recallflow.fields import EPOCH_MS_MAX
from recallflow.flows.security_settings import AuthSettings
from recallflow.operators.authorise import Authoriser, Trust
from recallflow.operators.tokens import Issuer
from recallflow.records import Position, Record
from recallflow.signing_keys import Jwks, SigningKey

if TYPE_CHECKING:
    from recallflow.connectors.jwks import KeySource

KIND = "token_key"
BY = "recallflow run"
RETRY_S = 30.0  # after a look that failed, where the next is not due sooner
Announce = Callable[[Sequence[TokenKey]], None]
NOWHERE = Position("gateway", 0, 0)  # of a record that is not in its log yet
# Why decisions cannot be read on, if so.
Failure = Callable[[], Exception | None]

_log = logging.getLogger(__name__)


def key_source(auth: AuthSettings) -> "KeySource | None":
    """Where `auth.jwks` says that keys are. Raises UsageError."""
    if auth.jwks is None:
        return None
    from recallflow.connectors.jwks import open_jwks  # an HTTP client takes a while to import

    return open_jwks(auth.jwks)


class TokenKeys:
    """Compares the keys there are with those in the log, again and again, and announces what changed."""

    def __init__(
        self,
        auth: AuthSettings,
        source: "KeySource | None",
        history: History,
        secrets: MutableMapping[str, bytes],
        announce: Announce,
    ) -> None:
        """`secrets`: by fingerprint; those that come are added before they are announced."""
        self._own = [] if auth.secret is None else [SigningKey.of_secret(auth.secret.encode())]
        self._refresh_s = auth.jwks_refresh_s
        self._source = source
        self._history = history
        self._secrets = secrets
        self._announce = announce
        self._missing: set[str] = set()  # names that the last look did not find
        self._said: Collection[str] = ()  # what the last look found wrong with keys
        self._error: Exception | None = None
        self._stopping = threading.Event()

    def begin(self) -> None:
        """The first look: before anything is read that may need the keys. Raises SourceError where a file of keys
        cannot be read, as the log lacks what is secret of it, or an address, and no key is known, so that no token
        could be believed; and SinkError."""
        try:
            self.look()
        except SourceError as error:
            if self._source is not None and not self._source.is_remote:
                raise
            if not self._own and not self._held():
                raise SourceError(f"{error}; no signing key is known yet, so that no token would be believed") from None
            _log.warning("%s; tokens are judged by the keys that are known", error)

    def running(self) -> AbstractContextManager[None]:
        """Looks on, on a thread of its own."""
        return beside(self._run, "token-keys", self._stopping)

    def check(self, _: object) -> None:
        """Raises SourceError where keys are not looked at any more."""
        if self._error is not None:
            raise SourceError(f"signing keys are not followed any more: {self._error}") from self._error

    def look(self) -> None:
        """Looks once. Raises SourceError where keys cannot be read: those that are set are announced all the same, and
        none is taken for gone."""
        trouble: SourceError | None = None
        read = Jwks([], [])
        try:
            if self._source is not None:
                read = self._source.read()
        except SourceError as error:
            trouble = error
        given = {key.name: key for key in (*read.keys, *self._own)}
        self._secrets.update({key.fingerprint: key.secret for key in given.values() if key.secret is not None})
        held = self._held()
        back = [name for name in given if name not in held and self._is_revoked(name)]
        self._say([*read.problems, *(f"{name}: it was revoked, and stays so: give it another kid" for name in back)])
        events = [self._event(key) for name, key in given.items() if name not in back and self._is_news(key, held)]
        if trouble is None:
            events += self._revocations({*given, *read.unread}, held)
        if events:
            self._announce(events)
        for event in events:
            _log.info("signing key %s (%s) is %s", event.name, event.algorithm, "revoked" if event.revoked else "new")
        if trouble is not None:
            raise trouble

    def _run(self) -> None:
        wait_s = self._refresh_s
        while not self._stopping.wait(wait_s):
            wait_s = self._refresh_s
            try:
                self.look()
            except (SourceError, SinkError) as error:
                _log.warning("%s; tokens are judged by the keys that are known", error)
                wait_s = min(RETRY_S, wait_s)
            except Exception as error:  # noqa: BLE001 - it is raised where it stops the flow
                self._error = error
                return

    def _held(self) -> dict[str, TokenKey]:
        """The keys in the log that were not revoked, by name."""
        names = [name for name in self._history.names(ALL_TENANTS, KIND) if not self._is_revoked(name)]
        found = {name: self._history.as_of(ALL_TENANTS, KIND, name, EPOCH_MS_MAX) for name in names}
        return {name: key for name, key in found.items() if isinstance(key, TokenKey)}

    def _is_revoked(self, name: str) -> bool:
        return self._history.is_revoked(ALL_TENANTS, KIND, name, EPOCH_MS_MAX)

    def _is_news(self, key: SigningKey, held: Mapping[str, TokenKey]) -> bool:
        known = held.get(key.name)
        return known is None or known.fingerprint != key.fingerprint

    def _say(self, problems: Collection[str]) -> None:
        """Says what is wrong with keys, each once as long as it stays so."""
        for problem in problems:
            if problem not in self._said:
                _log.warning("auth.jwks: %s", problem)
        self._said = problems

    def _revocations(self, given: Collection[str], held: Mapping[str, TokenKey]) -> list[TokenKey]:
        """What to say of keys that are gone. An address is believed that the second time only: of several servers that
        answer there, one may be behind, and a revocation is for good."""
        # Who gives no JWKS at all has not said that its keys are gone.
        gone = {name for name, key in held.items() if name not in given and (self._source or key.jwk is None)}
        sure = gone & self._missing if self._source is not None and self._source.is_remote else gone
        self._missing = gone
        return [held[name].model_copy(update={"revoked": True, **self._origin("it is gone")}) for name in sorted(sure)]

    def _event(self, key: SigningKey) -> TokenKey:
        return TokenKey.model_validate(
            {
                "type": KIND,
                "tenant_id": ALL_TENANTS,
                "name": key.name,
                "algorithm": key.algorithm,
                "jwk": key.jwk,
                "fingerprint": key.fingerprint,
                **self._origin("it is in auth.jwks" if key not in self._own else "it is auth.secret"),
            }
        )

    def _origin(self, why: str) -> dict[str, object]:
        return {"timestamp": time.time_ns() // 1_000_000, "by": BY, "why": why}


def trust_of(auth: AuthSettings, secrets: Mapping[str, bytes]) -> Trust:
    """What the verdict on records needs of the settings. `secrets`: by fingerprint; more may be added later."""
    return Trust(auth.mode, Issuer(auth.issuer, auth.audience, auth.tenant_claim), secrets)


def known_secrets(auth: AuthSettings) -> dict[str, bytes]:
    """The secrets that tokens may be signed with, by fingerprint, for who announces none (`TokenKeys` does): the one
    that is set, and those of a JWKS file. An address gives out none, as others have read them there. Raises
    SourceError: without a secret that it needs, a verdict would be another one."""
    if auth.mode == "off":
        return {}
    keys = [] if auth.secret is None else [SigningKey.of_secret(auth.secret.encode())]
    source = key_source(auth)
    if source is not None and not source.is_remote:
        keys += source.read().keys
    return {key.fingerprint: key.secret for key in keys if key.secret is not None}


class LiveAdmission:
    """Admission by what is decided now: the engine's own verdict, on a record that is appended at this moment. Where
    decisions cannot be read on, nobody knows what is decided, and everybody is refused with SourceError."""

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
            raise SourceError(f"decisions cannot be read on: {error}")
        return record_now(headers)


def record_now(headers: Headers) -> Record:
    """A record that is appended at this moment."""
    return Record(NOWHERE, b"", now_ms(), headers=headers)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
