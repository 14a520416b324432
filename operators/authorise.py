"""Authorisation of records, as of their append time.

The verdict is a pure function of the record, of earlier control events, and of the secrets that sign tokens. So a
replay a year later gives the same verdict, after tokens and keys have expired. A control event applies DELAY_MS after
its append, because a running engine reads control events with a delay."""

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
from recallflow.records import Principal, Record, Refusal

STEP = "authorise"
VERDICT_KINDS = (*KEY_KINDS, "quota")  # types of the control events that the verdict on a record depends on
ANY_ISSUER = Issuer()
_VALUE_BYTES = 16_500  # the longest credential or user id
_SCHEME = "bearer"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trust:
    """The trust settings. `mode`: `required` checks every record, `off` checks none, and `auto` checks records appended
    after the first key was created. `secrets` maps fingerprints to the secrets that sign tokens."""

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
        decisions.subscribe(self._note_late_decision)

    def authorise(self, item: Decoded) -> Decoded:
        """Return the item with its sender and without credentials, or a refusal (`unauthenticated`, `forbidden`)."""
        record = item.record
        # Set before any lookup, because `_note_late_decision` compares the times of later control events with it.
        self._newest_ms = max(self._newest_ms, record.append_ms)
        stripped = record._replace(headers=without_credentials(record.headers)) if record.headers else record
        if isinstance(item, Refused) or not self._is_checked(record.append_ms):
            return item._replace(record=stripped)
        event: Event = item.query if isinstance(item, Ask) else item.event
        try:
            grant, end_user = retry_once(STEP, record.position, self._grant, record, event.tenant_id)
            stripped = stripped._replace(principal=Principal(grant.name, grant.projects))
            retry_once(STEP, record.position, grant.check, event, end_user)
        except InvalidRecord as error:
            return refused(stripped, Refusal(STEP, error.code, *error.fields[0]))
        return item._replace(record=stripped)

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
        sent, at_ms = _credentials(record.headers), record.append_ms - DELAY_MS
        if sent.key is not None and sent.token is None:
            self._api_keys.authenticate(sent.key, at_ms)
        else:
            self._grant(record, ALL_TENANTS)  # a token names its own tenant

    def check_tenant(self, record: Record, tenant_id: str, *, sends: bool) -> str | None:
        """Check whether a record's sender may read a tenant's control events, or send new ones (`sends`). Return the
        sender's name; None if credentials are not required. Raise InvalidRecord (`unauthenticated`, `forbidden`)."""
        if not self._is_checked(record.append_ms):
            return None
        grant, end_user = self._grant(record, tenant_id)
        grant.check_tenant(tenant_id, end_user, sends=sends)
        return grant.name

    def ids(self, record: Record) -> dict[str, str]:
        """Return the ids that a record's credentials determine uniquely, by event field; none if credentials are not
        required. The secret of an API key is not checked here, but by `check` of the completed event. Raise
        InvalidRecord (`unauthenticated`)."""
        if not self._is_checked(record.append_ms):
            return {}
        sent, at_ms = _credentials(record.headers), record.append_ms - DELAY_MS
        grant: Grant | None = None
        if sent.token is not None:
            grant = self._tokens.grant(sent.token, record.append_ms, at_ms)
        elif sent.key is not None:
            grant = self._api_keys.unverified_grant(sent.key, at_ms)
        return {} if grant is None else grant.ids(sent.end_user)

    def describe(self) -> str:
        if self._mode == "required":
            return "auth is required: every record needs credentials"
        if self._mode == "off":
            return "auth is off: no record is checked"
        if (required_from_ms := self._required_from_ms()) is None:
            return "auth is off until a key is created (recallflow keys create): no record is checked"
        return f"auth is on: records appended since {format_time(required_from_ms)} need credentials"

    def needs_credentials(self) -> bool:
        """Return whether records need credentials now."""
        return self._mode == "required" or (self._mode == "auto" and self._required_from_ms() is not None)

    def warn(self) -> None:
        for fingerprint in self._tokens.unknown_secrets():
            _log.warning(
                "tokens were signed with a secret of the fingerprint %s…, which is neither auth.secret nor in "
                "auth.jwks: a replay refuses records with these tokens; configure the secret",
                fingerprint[:16],
            )

    def _note_late_decision(self, append_ms: int, event: Control) -> None:
        """Count and log a control event that arrived after records to which it applies. The control thread calls it."""
        kind: str = event.type  # type: ignore[attr-defined]
        if kind in VERDICT_KINDS and append_ms + DELAY_MS <= self._newest_ms:
            self.late[kind] += 1
            _log.warning(
                "the %s %s of %s from %s arrived after records up to %s were authorised: a rebuild applies it to these "
                "records, and its state may differ",
                kind, event.name, event.tenant_id, format_time(append_ms), format_time(self._newest_ms),
            )  # fmt: skip

    def _required_from_ms(self) -> int | None:
        first_ms = self._decisions.first_decision_ms(KEY_KINDS)
        return None if first_ms is None else first_ms + DELAY_MS

    def _is_checked(self, append_ms: int) -> bool:
        if self._mode != "auto":
            return self._mode == "required"
        required_from_ms = self._required_from_ms()
        return required_from_ms is not None and append_ms >= required_from_ms

    def _grant(self, record: Record, tenant_id: str) -> tuple[Grant, str | None]:
        """Return the rights that a record has on a tenant's memories, and its end user. Raise InvalidRecord."""
        sent, at_ms = _credentials(record.headers), record.append_ms - DELAY_MS
        if sent.token is not None and sent.key is not None:
            raise refusal("unauthenticated", "", f"both {TOKEN_HEADER} and {KEY_HEADER} are set: leave one out")
        if sent.token is not None:
            return self._tokens.grant(sent.token, record.append_ms, at_ms), sent.end_user
        if sent.key is not None:
            return self._api_keys.grant(sent.key, tenant_id, at_ms), sent.end_user
        raise refusal("unauthenticated", "", f"no credentials: send the header {TOKEN_HEADER} or {KEY_HEADER}")


class _Credentials(NamedTuple):
    """The credentials and the end user in a record's headers."""

    token: str | None
    key: str | None
    end_user: str | None


def _credentials(headers: Headers | None) -> _Credentials:
    """Parse the headers of a sender. Raise InvalidRecord (`unauthenticated`) for repeated or unreadable headers."""
    if headers is None:
        raise refusal("unauthenticated", "", "the record's headers cannot be read: a header's name is not UTF-8")
    token, key, end_user = (_header_value(headers, name) for name in (TOKEN_HEADER, KEY_HEADER, USER_HEADER))
    if token is not None:
        scheme, _, token = token.partition(" ")
        if scheme.lower() != _SCHEME:
            raise refusal("unauthenticated", TOKEN_HEADER, "is not of the scheme Bearer: send 'Bearer', a space, a JWT")
        token = token.strip(" ")
        if key is None and ApiKeyText.parse(token) is not None:
            token, key = None, token
    return _Credentials(token, key, end_user)


def _header_value(headers: Headers, name: str) -> str | None:
    """Return the value of a header; None if it is missing. `name` is in lower case, and headers in any case."""
    values = [value for header, value in headers if header.lower() == name]
    if not values:
        return None
    if len(values) > 1:
        raise refusal("unauthenticated", name, "is sent twice: send it once")
    if not values[0] or len(values[0]) > _VALUE_BYTES:
        raise refusal("unauthenticated", name, "is empty" if not values[0] else f"has over {_VALUE_BYTES:,} bytes")
    try:
        return values[0].decode()
    except UnicodeDecodeError:
        raise refusal("unauthenticated", name, "is not UTF-8") from None
