"""Authorisation of records, as of their append time.

It is a pure function of the record, of earlier control events, and of the secrets that sign tokens. So it gives the
same verdict a year later, after tokens and keys have expired. A control event applies DELAY_MS after its append,
because a running engine reads control events with a delay."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from recallflow.control import ALL_TENANTS, DELAY_MS, Control, ControlHistory
from recallflow.credentials import KEY_HEADER, TOKEN_HEADER, USER_HEADER, ApiKeyText, Headers, without_credentials
from recallflow.errors import InvalidRecord
from recallflow.events import Event
from recallflow.fields import format_time
from recallflow.operators.events import Ask, Decoded, Refused, refused
from recallflow.operators.grants import KEY_KINDS, ApiKeys, Grant, Issuer, TokenVerifier, refusal
from recallflow.operators.guard import retry_once
from recallflow.records import Record, Refusal

STEP = "authorise"
VERDICT_KINDS = (*KEY_KINDS, "quota")  # types of the control events that the verdict on a record depends on
ANY_ISSUER = Issuer()
_VALUE_BYTES = 16_500  # the longest credential or user id
_SCHEME = "bearer"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trust:
    """The trust settings. `mode`: `required` checks every record, `off` none, and `auto` records appended after the
    first key was configured. `secrets` maps fingerprints to the secrets that sign tokens."""

    mode: str = "auto"
    issuer: Issuer = ANY_ISSUER
    secrets: Mapping[str, bytes] = field(default_factory=dict)


class Authoriser:
    def __init__(self, decisions: ControlHistory, trust: Trust) -> None:
        self.late: Counter[str] = Counter()  # decisions that arrived after records they apply to, by kind
        self._decisions = decisions
        self._mode = trust.mode
        self._api_keys = ApiKeys(decisions)
        self._tokens = TokenVerifier(decisions, trust.issuer, trust.secrets)
        self._newest_ms = -1
        decisions.subscribe(self._learn)

    def authorise(self, item: Decoded) -> Decoded:
        """Return the item with its sender and without credentials, or a refusal (`unauthenticated`, `forbidden`)."""
        # It is set before any lookup, because `_learn` compares the times of later control events with it.
        self._newest_ms = max(self._newest_ms, item.record.append_ms)
        headers, record = item.record.headers, item.record
        bare = record if not headers else record._replace(headers=without_credentials(headers))
        if isinstance(item, Refused) or not self._is_checked(record.append_ms):
            return item._replace(record=bare)
        event: Event = item.query if isinstance(item, Ask) else item.event
        try:
            grant, end_user = retry_once(STEP, record.position, self._grant, record, event.tenant_id)
            bare = bare._replace(principal=grant.principal)
            retry_once(STEP, record.position, grant.check, event, end_user)
        except InvalidRecord as error:
            return refused(bare, Refusal(STEP, error.code, *error.fields[0]))
        return item._replace(record=bare)

    def check(self, record: Record, event: Event) -> None:
        """Check a record before it is in the log. Raise InvalidRecord (`unauthenticated`, `forbidden`)."""
        if self._is_checked(record.append_ms):
            grant, end_user = self._grant(record, event.tenant_id)
            grant.check(event, end_user)

    def authenticate(self, record: Record) -> None:
        """Raise InvalidRecord (`unauthenticated`) unless a record's credentials are valid. It needs no event, so a
        server can call it before it reads the body."""
        if not self._is_checked(record.append_ms):
            return
        given, at_ms = _read(record.headers), record.append_ms - DELAY_MS
        if given.key is not None and given.token is None:
            self._api_keys.authenticate(given.key, at_ms)
        else:
            self._grant(record, ALL_TENANTS)  # a token names its own tenant

    def check_tenant(self, record: Record, tenant_id: str, *, decides: bool) -> str | None:
        """Check whether a record's sender may read a tenant's control events, or send new ones (`decides`). Return the
        sender's name; None if credentials are not required. Raise InvalidRecord (`unauthenticated`, `forbidden`)."""
        if not self._is_checked(record.append_ms):
            return None
        grant, end_user = self._grant(record, tenant_id)
        grant.check_tenant(tenant_id, end_user, decides=decides)
        return grant.name

    def ids(self, record: Record) -> dict[str, str]:
        """Return the ids that a record's credentials determine uniquely, by event field; none if credentials are not
        required. The secret of an API key is not checked here, but by `check` of the completed event. Raise
        InvalidRecord (`unauthenticated`)."""
        if not self._is_checked(record.append_ms):
            return {}
        given, at_ms = _read(record.headers), record.append_ms - DELAY_MS
        grant: Grant | None = None
        if given.token is not None:
            grant = self._tokens.grant(given.token, record.append_ms, at_ms)
        elif given.key is not None:
            grant = self._api_keys.unverified_grant(given.key, at_ms)
        return {} if grant is None else grant.ids(given.end_user)

    def describe(self) -> str:
        if self._mode == "required":
            return "auth is required: every record needs credentials"
        if self._mode == "off":
            return "auth is off: every record is believed"
        if (began_ms := self._began_ms()) is None:
            return "auth is off until there is a key (recallflow keys create): every record is believed"
        return f"auth is on: records appended since {format_time(began_ms)} need credentials"

    def needs_credentials(self) -> bool:
        """Return whether records need credentials now."""
        return self._mode == "required" or (self._mode == "auto" and self._began_ms() is not None)

    def warn(self) -> None:
        for fingerprint in self._tokens.unknown_secrets():
            _log.warning(
                "tokens were signed with a secret of the fingerprint %s…, which is neither auth.secret nor in "
                "auth.jwks: records that came with them are refused where they are read again; give it",
                fingerprint[:16],
            )

    def _learn(self, append_ms: int, event: Control) -> None:
        """Log a control event that arrived after records it applies to. The thread of the control topic calls it."""
        kind: str = event.type  # type: ignore[attr-defined]
        if kind in VERDICT_KINDS and append_ms + DELAY_MS <= self._newest_ms:
            self.late[kind] += 1
            _log.warning(
                "the %s %s of %s from %s arrived after records up to %s were authorised: a rebuild authorises those "
                "by it, and its state may differ",
                kind, event.name, event.tenant_id, format_time(append_ms), format_time(self._newest_ms),
            )  # fmt: skip

    def _began_ms(self) -> int | None:
        """Return the time from which credentials are required."""
        began_ms = self._decisions.first_decision_ms(KEY_KINDS)
        return None if began_ms is None else began_ms + DELAY_MS

    def _is_checked(self, append_ms: int) -> bool:
        if self._mode != "auto":
            return self._mode == "required"
        began_ms = self._began_ms()
        return began_ms is not None and append_ms >= began_ms

    def _grant(self, record: Record, tenant_id: str) -> tuple[Grant, str | None]:
        """Return the rights that a record has on a tenant's memories, and its end user. Raise InvalidRecord."""
        given, at_ms = _read(record.headers), record.append_ms - DELAY_MS
        if given.token is not None and given.key is not None:
            raise refusal("unauthenticated", "", f"both {TOKEN_HEADER} and {KEY_HEADER} are given: leave one out")
        if given.token is not None:
            return self._tokens.grant(given.token, record.append_ms, at_ms), given.end_user
        if given.key is not None:
            return self._api_keys.grant(given.key, tenant_id, at_ms), given.end_user
        raise refusal("unauthenticated", "", f"no credentials: send the header {TOKEN_HEADER} or {KEY_HEADER}")


class _Credentials(NamedTuple):
    """The credentials and the end user in a record's headers."""

    token: str | None
    key: str | None
    end_user: str | None


def _read(headers: Headers | None) -> _Credentials:
    """Parse the headers of a sender. Raise InvalidRecord (`unauthenticated`) for repeated or unreadable headers."""
    if headers is None:
        raise refusal("unauthenticated", "", "its headers cannot be read: a header's name is not UTF-8")
    token, key, end_user = (_value(headers, name) for name in (TOKEN_HEADER, KEY_HEADER, USER_HEADER))
    if token is not None:
        scheme, _, token = token.partition(" ")
        if scheme.lower() != _SCHEME:
            raise refusal(
                "unauthenticated", TOKEN_HEADER, "is not of the scheme Bearer: send Bearer, a space, and a JWT"
            )
        token = token.strip(" ")
        if key is None and ApiKeyText.parse(token) is not None:
            token, key = None, token
    return _Credentials(token, key, end_user)


def _value(headers: Headers, name: str) -> str | None:
    """Return the value of a header, in any case; None if it is missing."""
    values = [value for given, value in headers if given.lower() == name]
    if not values:
        return None
    if len(values) > 1:
        raise refusal("unauthenticated", name, "is given twice: send it once")
    if not values[0] or len(values[0]) > _VALUE_BYTES:
        raise refusal("unauthenticated", name, "is empty" if not values[0] else f"has over {_VALUE_BYTES:,} bytes")
    try:
        return values[0].decode()
    except UnicodeDecodeError:
        raise refusal("unauthenticated", name, "is not UTF-8") from None
