"""JWTs, and their rights as of any time."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from recallflow.caching import Kept
from recallflow.control import ALL_TENANTS, TokenKey
from recallflow.credentials import TOKEN_HEADER
from recallflow.decisions import History
from recallflow.errors import InvalidRecord, UsageError
from recallflow.fields import EPOCH_MS_MAX, Name
from recallflow.operators.grant import Grant, refusal
from recallflow.signing_keys import read_key

KIND = "token_key"
TOKEN_CHARACTERS = 16_384
VERIFIED_BYTES = 16 * 1024 * 1024  # cache of verified tokens; a verification takes 0.1 ms
_SECOND_MS = 1_000
# Times are compared with the record's append time here, because PyJWT would use a clock.
_OPTIONS: Any = {"require": ["exp", "sub"], "verify_exp": False, "verify_nbf": False, "verify_iat": False}
_NAME, _NAMES = TypeAdapter(Name), TypeAdapter(list[Name])


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
    """The verification of tokens, and their keys."""

    def __init__(self, decisions: History, issuer: Issuer, secrets: Mapping[str, bytes]) -> None:
        """Args:
        decisions: The control events with keys.
        issuer: The required issuer and audience.
        secrets: Secrets by fingerprint. More may be added later.
        """
        self._decisions = decisions
        self._issuer = issuer
        self._secrets = secrets
        self._public: dict[str, Any] = {}  # by fingerprint
        self._heads = Kept(_head, VERIFIED_BYTES // 4)
        self._verified: Kept[tuple[str, str, str], Verified] = Kept(self._verify, VERIFIED_BYTES)

    def grant(self, token: str, append_ms: int, at_ms: int) -> Grant:
        """Return the rights of a token in a record appended at `append_ms`, by the keys in force at `at_ms`. Raise
        InvalidRecord (`unauthenticated`)."""
        if len(token) > TOKEN_CHARACTERS:
            raise _refusal(f"the token has over {TOKEN_CHARACTERS:,} characters")
        kid, algorithm = self._heads[token]
        key = self._only_key(algorithm, at_ms) if kid is None else self._key(kid, at_ms)
        if key is None:
            raise _refusal("the token is signed with no key that is known, or with one that was revoked: get a new one")
        if algorithm != key.algorithm:
            raise _refusal("the token's alg is not the one that its key is for")
        self._learn(key)
        grant, begin_ms, end_ms = self._verified[token, key.algorithm, key.fingerprint]
        if append_ms < begin_ms:
            raise _refusal("the token does not hold yet: compare the clocks")
        if append_ms >= end_ms:
            raise _refusal("the token has expired: get a new one")
        return grant

    def unknown_secrets(self) -> list[str]:
        """Return fingerprints of secrets that signed tokens in the past and are missing here."""
        found = (self._decisions.as_of(ALL_TENANTS, KIND, name, EPOCH_MS_MAX) for name in self._names())
        return [
            key.fingerprint
            for key in found
            if isinstance(key, TokenKey) and key.algorithm == "HS256" and key.fingerprint not in self._secrets
        ]

    # ------------------------------------------------------------------ keys

    def _names(self) -> list[str]:
        return self._decisions.names(ALL_TENANTS, KIND)

    def _key(self, name: str, at_ms: int) -> TokenKey | None:
        """Return the key of a name that was valid at a time."""
        if self._decisions.is_revoked(ALL_TENANTS, KIND, name, at_ms):
            return None
        found = self._decisions.as_of(ALL_TENANTS, KIND, name, at_ms)
        return found if isinstance(found, TokenKey) else None

    def _only_key(self, algorithm: str, at_ms: int) -> TokenKey | None:
        """Return the only key of an algorithm that was valid at a time; None if there are several."""
        found = [key for name in self._names() if (key := self._key(name, at_ms)) and key.algorithm == algorithm]
        return found[0] if len(found) == 1 else None

    def _learn(self, key: TokenKey) -> None:
        """Cache a public key whose fingerprint and algorithm are correct."""
        if key.fingerprint in self._public or key.algorithm == "HS256":
            return
        try:
            read = read_key(key.jwk)
        except UsageError:
            return
        if read.jwk is not None and (read.algorithm, read.fingerprint) == (key.algorithm, key.fingerprint):
            import jwt

            self._public[read.fingerprint] = jwt.PyJWK(read.jwk, read.algorithm).key

    # ------------------------------------------------------------------ tokens

    def _verify(self, given: tuple[str, str, str]) -> Verified:
        """Verify a token with a key, and return its claims. Raise InvalidRecord."""
        import jwt  # only loaded if tokens are used

        token, algorithm, fingerprint = given
        key = self._secrets.get(fingerprint) if algorithm == "HS256" else self._public.get(fingerprint)
        if key is None:
            raise _refusal("the key that the token is signed with is not known here: ask the operator")
        issuer, audience, _ = self._issuer
        try:
            claims = jwt.decode(token, key, algorithms=[algorithm], issuer=issuer, audience=audience, options=_OPTIONS)
        except jwt.InvalidSignatureError:
            raise _refusal("the token's signature is not that of its key") from None
        except jwt.InvalidAudienceError:
            raise _refusal("the token is for another audience: auth.audience names ours") from None
        except jwt.InvalidIssuerError:
            raise _refusal("the token is of another issuer: auth.issuer names ours") from None
        except jwt.MissingRequiredClaimError as error:
            raise _refusal(f"the token lacks the claim {error.claim}") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise _unreadable() from None
        return self._read(claims)

    def _read(self, claims: dict[str, Any]) -> Verified:
        """Parse claims. Raise InvalidRecord."""
        environments, end_users = _names(claims, "environments"), _names(claims, "end_users")
        grant = Grant(
            name=_name(claims, "sub"),
            tenant_id=_name(claims, self._issuer.tenant_claim),
            projects=_names(claims, "projects"),
            environments=None if environments is None else frozenset(environments),
            end_users=None if end_users is None else frozenset(end_users),
        )
        return Verified(grant, _time_ms(claims, "nbf") if "nbf" in claims else 0, _time_ms(claims, "exp"))


def _head(token: str) -> tuple[str | None, str]:
    """Return the key name, if any, and the algorithm in a token's header. Raise InvalidRecord."""
    import jwt

    try:
        head = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise _unreadable() from None
    return head.get("kid"), str(head.get("alg"))


def _name(claims: dict[str, Any], claim: str) -> str:
    try:
        return _NAME.validate_python(claims.get(claim), strict=True)
    except ValidationError:
        raise _refusal(f"the token's claim {claim} is no name") from None


def _names(claims: dict[str, Any], claim: str) -> tuple[str, ...] | None:
    """Return the names in a claim; None if the claim is missing."""
    if claim not in claims:
        return None
    try:
        return tuple(_NAMES.validate_python(claims[claim], strict=True))
    except ValidationError:
        raise _refusal(f"the token's claim {claim} is no list of names") from None


def _time_ms(claims: dict[str, Any], claim: str) -> int:
    value = claims[claim]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= EPOCH_MS_MAX // _SECOND_MS:
        raise _refusal(f"the token's claim {claim} is no time in seconds")
    return int(value * _SECOND_MS)


def _refusal(problem: str) -> InvalidRecord:
    return refusal("unauthenticated", TOKEN_HEADER, problem)


def _unreadable() -> InvalidRecord:
    return _refusal("no token that can be read: send Bearer, a space, and a JWT")
