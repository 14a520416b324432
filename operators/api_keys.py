"""API keys, and their rights as of any time."""

import hmac
from contextlib import suppress

from recallflow.control import ALL_TENANTS, ApiKey
from recallflow.credentials import KEY_HEADER, ApiKeyText, hash_of
from recallflow.decisions import History
from recallflow.errors import InvalidRecord
from recallflow.operators.grant import Grant, refusal

KIND = "api_key"
UNKNOWN = (
    "no API key of this tenant: check both, wait a second with one that was just made, or ask its operator for a new "
    "key (recallflow keys create)"
)
# Used in place of a missing key, so that a lookup takes the same time.
_NO_SALT, _NO_HASH = "0" * 32, "0" * 64


class ApiKeys:
    """The API keys of all tenants."""

    def __init__(self, decisions: History) -> None:
        self._decisions = decisions
        self._grants: dict[tuple[str, str], tuple[ApiKey, Grant]] = {}  # by tenant and name, with the decision used

    def grant(self, text: str, tenant_id: str, at_ms: int) -> Grant:
        """Return the rights of a key with a tenant's memories, as of a time. Raise InvalidRecord
        (`unauthenticated`)."""
        given = ApiKeyText.parse(text)
        if given is None:
            raise refusal("unauthenticated", KEY_HEADER, "no API key: give it as it was shown, rfk_…")
        holder, key = self._find(tenant_id, given.name, at_ms)
        salt, stored = (_NO_SALT, _NO_HASH) if key is None else (key.salt, key.hash)
        same = hmac.compare_digest(hash_of(salt, given.secret).encode(), stored.encode())
        if key is None or not same:
            raise refusal("unauthenticated", KEY_HEADER, UNKNOWN)
        if self._decisions.is_revoked(holder, KIND, given.name, at_ms):  # only a holder of the secret learns it
            raise refusal("unauthenticated", KEY_HEADER, "the API key was revoked: ask for a new one")
        return self._grant(holder, key)

    def claimed(self, text: str, at_ms: int) -> Grant | None:
        """Return the rights of the only key of this name, if there is one. The secret is not checked: call `grant`
        before any action."""
        given = ApiKeyText.parse(text)
        holders = [] if given is None else self._decisions.tenants(KIND, given.name)
        if given is None or len(holders) != 1:
            return None
        key = self._decisions.as_of(holders[0], KIND, given.name, at_ms)
        return self._grant(holders[0], key) if isinstance(key, ApiKey) else None

    def authenticate(self, text: str, at_ms: int) -> None:
        """Raise InvalidRecord (`unauthenticated`) for a text that is not a valid key of any tenant at a time."""
        given = ApiKeyText.parse(text)
        holders = [] if given is None else self._decisions.tenants(KIND, given.name)
        *others, last = holders or [ALL_TENANTS]
        for holder in others:
            with suppress(InvalidRecord):
                self.grant(text, holder, at_ms)
                return
        self.grant(text, last, at_ms)

    def _find(self, tenant_id: str, name: str, at_ms: int) -> tuple[str, ApiKey | None]:
        """Return the holder of a named key, and the key. Both possible holders are always looked up, for constant
        time."""
        own, deployments = (self._decisions.as_of(holder, KIND, name, at_ms) for holder in (tenant_id, ALL_TENANTS))
        if isinstance(own, ApiKey):
            return tenant_id, own
        return ALL_TENANTS, deployments if isinstance(deployments, ApiKey) else None

    def _grant(self, holder: str, key: ApiKey) -> Grant:
        """Return the rights of a key. They are cached, because their lists may be long."""
        made_of, grant = self._grants.get((holder, key.name), (None, None))
        if made_of is not key or grant is None:
            grant = Grant(
                name=key.name,
                tenant_id=None if holder == ALL_TENANTS else holder,
                projects=None if key.projects is None else tuple(key.projects),
                environments=None if key.environments is None else frozenset(key.environments),
                end_users=None if key.end_users is None else frozenset(key.end_users),
            )
            self._grants[holder, key.name] = key, grant
        return grant
