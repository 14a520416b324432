"""JWTs as of any time: what the one in a header allows."""

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
VERIFIED_BYTES = 16 * 1024 * 1024  # of tokens whose signature was checked: to check one takes 0.1 ms
_SECOND_MS = 1_000
# Times are compared with the record's, by us: PyJWT would look at a clock.
_OPTIONS: Any = {"require": ["exp", "sub"], "verify_exp": False, "verify_nbf": False, "verify_iat": False}
_NAME, _NAMES = TypeAdapter(Name), TypeAdapter(list[Name])


class Issuer(NamedTuple):
    """What a token must say: who made it, and for whom, None where that is not asked; and in which claim the tenant
    is."""

    issuer: str | None = None
    audience: str | None = None
    tenant_claim: str = "tenant_id"


class Verified(NamedTuple):
    """What a token says that is signed, and from when until when it holds."""

    grant: Grant
    begin_ms: int
    end_ms: int


class Tokens:
    """The tokens of everybody, and the keys that they are signed with."""

    def __init__(self, decisions: History, issuer: Issuer, secrets: Mapping[str, bytes]) -> None:
        """`secrets`: by fingerprint; there may be more of them later."""
        self._decisions = decisions
        self._issuer = issuer
        self._secrets = secrets
        self._public: dict[str, Any] = {}  # by fingerprint
        self._heads = Kept(_head, VERIFIED_BYTES // 4)
        self._verified: Kept[tuple[str, str, str], Verified] = Kept(self._verify, VERIFIED_BYTES)

    def grant(self, token: str, append_ms: int, at_ms: int) -> Grant:
        """What a token allows that came with a record of `append_ms`, by the keys that held at `at_ms`. Raises
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
        """Fingerprints of secrets that tokens were ever signed with, and that are not known here."""
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
        """The key of a name, where it held at a time."""
        if self._decisions.is_revoked(ALL_TENANTS, KIND, name, at_ms):
            return None
        found = self._decisions.as_of(ALL_TENANTS, KIND, name, at_ms)
        return found if isinstance(found, TokenKey) else None

    def _only_key(self, algorithm: str, at_ms: int) -> TokenKey | None:
        """The one key of an algorithm that held at a time, unless there were several."""
        found = [key for name in self._names() if (key := self._key(name, at_ms)) and key.algorithm == algorithm]
        return found[0] if len(found) == 1 else None

    def _learn(self, key: TokenKey) -> None:
        """Reads a public key, where that is what it says it is."""
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
        """What a token says that is signed with the key of an algorithm and a fingerprint. Raises InvalidRecord."""
        import jwt  # without tokens, an engine does without the library

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
        """What claims say. Raises InvalidRecord."""
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
    """What a token says that it is signed with: the key's name, if it has one, and the algorithm. Raises
    InvalidRecord."""
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
    """The names in a claim; None where it is not there. One that is there and says nothing is not taken for it."""
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
