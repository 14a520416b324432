"""Rights that API keys and JWTs gave their senders at a point in time.

Senders with credentials for some projects may change memories of these projects, but no data that all projects of a
user share. Memories of other projects are treated as missing. Ids are an exception: they are unique per owner, so an id
that is used in another project cannot be used again."""

import hmac
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from recallflow.caching import BoundedCache
from recallflow.control import ALL_TENANTS, ApiKey, ControlHistory, TokenKey
from recallflow.credentials import KEY_HEADER, TOKEN_HEADER, ApiKeyText, hash_secret, read_key
from recallflow.errors import ErrorCode, InvalidRecord, UsageError
from recallflow.events import Event, MemoryAdd, MemoryEmbedding, MemoryFeedback, MemoryForget, MemoryUpdate, Message
from recallflow.fields import EPOCH_MS_MAX, Name
from recallflow.operators.events import Ask, Write

KEY_KINDS = API_KEY, SIGNING_KEY = ("api_key", "token_key")
UNKNOWN_KEY = (
    "the tenant has no such API key: check tenant and key, wait a second with a new key, or have a key created "
    "(recallflow keys create)"
)
# Used in place of a missing key, so that a lookup takes the same time.
_NO_SALT, _NO_HASH = "0" * 32, "0" * 64
TOKEN_CHARACTERS = 16_384
VERIFIED_BYTES = 16 * 1024 * 1024  # of the cache of verified tokens; a verification takes 0.1 ms
_SECOND_MS = 1_000
_UNREADABLE = "not a readable token: send 'Bearer', a space, and a JWT"
# Times are compared with the record's append time here, because PyJWT would use a clock.
_OPTIONS: Any = {"require": ["exp", "sub"], "verify_exp": False, "verify_nbf": False, "verify_iat": False}
_NAME, _NAMES = TypeAdapter(Name), TypeAdapter(list[Name])


class Grant(NamedTuple):
    """The rights of credentials; None in a field is no restriction. `name` identifies the sender to administrators."""

    name: str
    tenant_id: str | None
    projects: tuple[str, ...] | None
    environments: frozenset[str] | None
    end_users: frozenset[str] | None

    @classmethod
    def of(cls, name: str, tenant_id: str | None, *limits: Sequence[str] | None) -> "Grant":
        """Return a grant with `limits`: the projects, environments and end users, None for no restriction."""
        projects, *others = (None if names is None else tuple(names) for names in limits)
        environments, end_users = (None if names is None else frozenset(names) for names in others)
        return cls(name, tenant_id, projects, environments, end_users)

    def check(self, event: Event, end_user: str | None) -> None:
        """Raise InvalidRecord (`forbidden`) for an event that is not allowed. `end_user` is the value of the header
        x-end-user-id. Projects are checked where memories are read."""
        if self.tenant_id not in (None, event.tenant_id):
            raise refusal("forbidden", "tenant_id", "the credentials are for another tenant")
        if self.environments is not None and event.environment not in self.environments:
            raise refusal("forbidden", "environment", "the credentials are for other environments")
        if self.end_users is not None and event.user_id not in self.end_users:
            raise refusal("forbidden", "user_id", "the credentials are for other users")
        if end_user is not None and end_user != event.user_id:
            raise refusal("forbidden", "user_id", "x-end-user-id names another user: it must be the event's user_id")

    def check_tenant(self, tenant_id: str, end_user: str | None, *, sends: bool) -> None:
        """Raise InvalidRecord (`forbidden`) if the credentials do not permit reading a tenant's control events, or
        sending new ones (`sends`), which needs a key for all tenants."""
        if self.tenant_id not in (None, tenant_id):
            raise refusal("forbidden", "tenant_id", "the credentials are for another tenant")
        if (self.projects, self.environments, self.end_users, end_user) != (None, None, None, None):
            raise refusal("forbidden", "", "the credentials are for a part of the tenant; this needs the whole tenant")
        if sends and self.tenant_id is not None:
            raise refusal("forbidden", "", "control events need a key for all tenants (recallflow keys create '*')")

    def ids(self, end_user: str | None) -> dict[str, str]:
        """Return the ids that the credentials determine uniquely, by event field. `end_user`: see `check`."""
        tenants = None if self.tenant_id is None else (self.tenant_id,)
        users = self.end_users if end_user is None else (end_user,)
        named = {"tenant_id": tenants, "user_id": users, "environment": self.environments, "project_id": self.projects}
        return {field: next(iter(names)) for field, names in named.items() if names is not None and len(names) == 1}


def refusal(code: ErrorCode, field: str, problem: str) -> InvalidRecord:
    """Return an error about credentials. `problem` must not repeat sent text, nor reveal existing names."""
    return InvalidRecord.of(code, problem, field)


def check_projects(write: Write) -> None:
    """Raise InvalidRecord for an event that its sender may not send, independent of stored data."""
    event, projects = write.event, write.projects
    if projects is None:
        return
    match event:
        case Message() | MemoryAdd():
            if event.project_id not in projects:
                raise refusal("forbidden", "project_id", f"the credentials are for {_listed(projects)}: set project_id")
        case MemoryUpdate() | MemoryEmbedding() | MemoryFeedback() | MemoryForget():
            pass  # `View.changeable` compares the memory's project
        case _:
            raise _too_wide(event.type, "changes data that all projects of a user share")


def check_all_projects(ask: Ask) -> None:
    """Raise InvalidRecord for a query that covers all projects, if its sender may read only some."""
    if ask.projects is not None:
        raise _too_wide(ask.query.type, "reads all projects of a user")


def _listed(projects: tuple[str, ...]) -> str:
    return f"the project{'s' if len(projects) > 1 else ''} {', '.join(sorted(projects))}" if projects else "no project"


def _too_wide(event_type: str, effect: str) -> InvalidRecord:
    return refusal("forbidden", "type", f"{event_type} {effect}: send it with credentials for all projects")


class ApiKeys:
    def __init__(self, decisions: ControlHistory) -> None:
        self._decisions = decisions
        self._grants: dict[tuple[str, str], tuple[ApiKey, Grant]] = {}  # with their keys, by tenant and name

    def grant(self, text: str, tenant_id: str, at_ms: int) -> Grant:
        """Return a key's rights on a tenant's memories at a time. Raise InvalidRecord (`unauthenticated`)."""
        parsed = ApiKeyText.parse(text)
        if parsed is None:
            raise refusal("unauthenticated", KEY_HEADER, "not an API key: send the key as recallflow printed it, rfk_…")
        holder, key = self._find(tenant_id, parsed.name, at_ms)
        salt, stored = (_NO_SALT, _NO_HASH) if key is None else (key.salt, key.hash)
        matches = hmac.compare_digest(hash_secret(salt, parsed.secret).encode(), stored.encode())
        if key is None or not matches:
            raise refusal("unauthenticated", KEY_HEADER, UNKNOWN_KEY)
        # Checked last, so that only a sender with the secret learns of the revocation.
        if self._decisions.is_revoked(holder, API_KEY, parsed.name, at_ms):
            raise refusal("unauthenticated", KEY_HEADER, "the API key was revoked: ask for a new one")
        return self._grant(holder, key)

    def unverified_grant(self, text: str, at_ms: int) -> Grant | None:
        """Return the rights of the key that `text` names; None unless exactly one tenant has a key with this name. The
        secret is not checked: call `grant` before any action."""
        parsed = ApiKeyText.parse(text)
        holders = [] if parsed is None else self._decisions.tenants(API_KEY, parsed.name)
        if parsed is None or len(holders) != 1:
            return None
        key = self._decisions.as_of(holders[0], API_KEY, parsed.name, at_ms)
        return self._grant(holders[0], key) if isinstance(key, ApiKey) else None

    def authenticate(self, text: str, at_ms: int) -> None:
        """Raise InvalidRecord (`unauthenticated`) for a text that is not a valid key of any tenant at a time."""
        parsed = ApiKeyText.parse(text)
        holders = [] if parsed is None else self._decisions.tenants(API_KEY, parsed.name)
        *others, last = holders or [ALL_TENANTS]
        for holder in others:
            with suppress(InvalidRecord):
                self.grant(text, holder, at_ms)
                return
        self.grant(text, last, at_ms)

    def _find(self, tenant_id: str, name: str, at_ms: int) -> tuple[str, ApiKey | None]:
        """Return the key with a name, and its holder: the tenant, or `*` for a key for all tenants. Both are looked up,
        so that the time does not reveal which one exists."""
        own, of_all = (self._decisions.as_of(holder, API_KEY, name, at_ms) for holder in (tenant_id, ALL_TENANTS))
        if isinstance(own, ApiKey):
            return tenant_id, own
        return ALL_TENANTS, of_all if isinstance(of_all, ApiKey) else None

    def _grant(self, holder: str, key: ApiKey) -> Grant:
        """Return the rights of a key. They are cached, because their lists may be long."""
        cached_key, grant = self._grants.get((holder, key.name), (None, None))
        if cached_key is not key or grant is None:
            tenant_id = None if holder == ALL_TENANTS else holder
            grant = Grant.of(key.name, tenant_id, key.projects, key.environments, key.end_users)
            self._grants[holder, key.name] = key, grant
        return grant


class Issuer(NamedTuple):
    """The required issuer and audience of a token, None for any; and the claim with the tenant."""

    issuer: str | None = None
    audience: str | None = None
    tenant_claim: str = "tenant_id"


class Verified(NamedTuple):
    """The rights of a verified token, and its validity period."""

    grant: Grant
    begin_ms: int
    end_ms: int


class TokenVerifier:
    def __init__(self, decisions: ControlHistory, issuer: Issuer, secrets: Mapping[str, bytes]) -> None:
        """`secrets` are by fingerprint. The caller may add secrets later."""
        self._decisions, self._issuer, self._secrets = decisions, issuer, secrets
        self._public_keys: dict[str, Any] = {}  # by fingerprint
        self._headers = BoundedCache(_header, VERIFIED_BYTES // 4)
        self._verified: BoundedCache[tuple[str, str, str], Verified] = BoundedCache(self._verify, VERIFIED_BYTES)

    def grant(self, token: str, append_ms: int, at_ms: int) -> Grant:
        """Return the rights of a token in a record appended at `append_ms`, by the signing keys at `at_ms`. Raise
        InvalidRecord (`unauthenticated`)."""
        if len(token) > TOKEN_CHARACTERS:
            raise _refusal(f"the token has over {TOKEN_CHARACTERS:,} characters")
        kid, algorithm = self._headers[token]
        key = self._only_key(algorithm, at_ms) if kid is None else self._key(kid, at_ms)
        if key is None:
            raise _refusal("the token's signing key is unknown or revoked: get a new token")
        if algorithm != key.algorithm:
            raise _refusal("the token's alg differs from the algorithm of its key")
        self._load_public_key(key)
        grant, begin_ms, end_ms = self._verified[token, key.algorithm, key.fingerprint]
        if append_ms < begin_ms:
            raise _refusal("the token is not valid yet (nbf): check the clocks")
        if append_ms >= end_ms:
            raise _refusal("the token has expired: get a new one")
        return grant

    def unknown_secrets(self) -> list[str]:
        """Return fingerprints of secrets that signed tokens in the past and are missing here."""
        found = (self._decisions.as_of(ALL_TENANTS, SIGNING_KEY, name, EPOCH_MS_MAX) for name in self._names())
        return [
            key.fingerprint
            for key in found
            if isinstance(key, TokenKey) and key.algorithm == "HS256" and key.fingerprint not in self._secrets
        ]

    def _names(self) -> list[str]:
        return self._decisions.names(ALL_TENANTS, SIGNING_KEY)

    def _key(self, name: str, at_ms: int) -> TokenKey | None:
        if self._decisions.is_revoked(ALL_TENANTS, SIGNING_KEY, name, at_ms):
            return None
        found = self._decisions.as_of(ALL_TENANTS, SIGNING_KEY, name, at_ms)
        return found if isinstance(found, TokenKey) else None

    def _only_key(self, algorithm: str, at_ms: int) -> TokenKey | None:
        """Return the only key of an algorithm that was valid at a time; None if there are several."""
        found = [key for name in self._names() if (key := self._key(name, at_ms)) and key.algorithm == algorithm]
        return found[0] if len(found) == 1 else None

    def _load_public_key(self, key: TokenKey) -> None:
        """Cache a public key whose fingerprint and algorithm are correct."""
        if key.fingerprint in self._public_keys or key.algorithm == "HS256":
            return
        try:
            read = read_key(key.jwk)
        except UsageError:
            return
        if read.jwk is not None and (read.algorithm, read.fingerprint) == (key.algorithm, key.fingerprint):
            import jwt

            self._public_keys[read.fingerprint] = jwt.PyJWK(read.jwk, read.algorithm).key

    def _verify(self, token_and_key: tuple[str, str, str]) -> Verified:
        """Verify a token with a key (algorithm and fingerprint), and return its rights. Raise InvalidRecord."""
        import jwt  # only loaded if tokens are used

        token, algorithm, fingerprint = token_and_key
        key = self._secrets.get(fingerprint) if algorithm == "HS256" else self._public_keys.get(fingerprint)
        if key is None:
            raise _refusal("this engine lacks the token's signing key: ask its administrator")
        issuer, audience, _ = self._issuer
        try:
            claims = jwt.decode(token, key, algorithms=[algorithm], issuer=issuer, audience=audience, options=_OPTIONS)
        except jwt.InvalidSignatureError:
            raise _refusal("the token's signature does not match its signing key") from None
        except jwt.InvalidAudienceError:
            raise _refusal("the token is for another audience than auth.audience") from None
        except jwt.InvalidIssuerError:
            raise _refusal("the token is from another issuer than auth.issuer") from None
        except jwt.MissingRequiredClaimError as error:
            raise _refusal(f"the token lacks the claim {error.claim}") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise _refusal(_UNREADABLE) from None
        return self._read(claims)

    def _read(self, claims: dict[str, Any]) -> Verified:
        limits = (_names(claims, claim) for claim in ("projects", "environments", "end_users"))
        grant = Grant.of(_name(claims, "sub"), _name(claims, self._issuer.tenant_claim), *limits)
        return Verified(grant, _time_ms(claims, "nbf") if "nbf" in claims else 0, _time_ms(claims, "exp"))


def _header(token: str) -> tuple[str | None, str]:
    """Return the key name, if any, and the algorithm in a token's header. Raise InvalidRecord."""
    import jwt

    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise _refusal(_UNREADABLE) from None
    return header.get("kid"), str(header.get("alg"))


def _name(claims: dict[str, Any], claim: str) -> str:
    try:
        return _NAME.validate_python(claims.get(claim), strict=True)
    except ValidationError:
        raise _refusal(f"the token's claim {claim} is not a name") from None


def _names(claims: dict[str, Any], claim: str) -> list[str] | None:
    if claim not in claims:
        return None
    try:
        return _NAMES.validate_python(claims[claim], strict=True)
    except ValidationError:
        raise _refusal(f"the token's claim {claim} is not a list of names") from None


def _time_ms(claims: dict[str, Any], claim: str) -> int:
    value = claims[claim]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= EPOCH_MS_MAX // _SECOND_MS:
        raise _refusal(f"the token's claim {claim} is not a time in seconds")
    return int(value * _SECOND_MS)


def _refusal(problem: str) -> InvalidRecord:
    return refusal("unauthenticated", TOKEN_HEADER, problem)
