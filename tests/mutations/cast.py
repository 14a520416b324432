"""Who takes part: tenants and users whose names look alike, what they may send with, and what each alone may see."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jwt
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from recallflow.control import ALL_TENANTS, SETTLED_MS, ApiKey, Control
from recallflow.credentials import KEY_HEADER, TOKEN_HEADER, ApiKeyText, hash_of, new_salt, signed
from recallflow.owner import Owner

BEGIN_MS = 1_800_000_000_000  # when the first mutated record is appended
STEP_MS = 10  # from one record to the next
DAY_MS = 86_400_000
ISSUER, AUDIENCE = "https://login.example", "recallflow"
RSA_KID, EC_KID, SECRET_KID = "rsa-1", "ec-1", "secret-1"
STAGING = "staging"
PROJECT = "apollo"

# Names that carelessness makes one: joined, folded, trimmed, normalised.
SENDERS = ("acme", "Acme", "acme ", "a", "a/b", "m\u00fcnchen", "mu\u0308nchen")
BYSTANDERS = ("bystander", "\uff41\uff43\uff4d\uff45", "ACME", "*")  # who send nothing that counts
USERS = ("c", "b/c", "ann", "Ann", "ann ", "e\u0301ve", "\u00e9ve")
ENVIRONMENTS = ("prod", STAGING)


@dataclass(frozen=True)
class Credential:
    """What a sender proves itself with: the value of a header, and what it is good for. `tenant`: None is any; `secret`
    is what no output may hold; it holds for records that are appended from `from_ms` up to `until_ms`."""

    name: str
    tenant: str | None
    header: str
    value: str
    secret: str
    environments: tuple[str, ...] | None = None
    users: tuple[str, ...] | None = None
    projects: tuple[str, ...] | None = None
    from_ms: int = BEGIN_MS - DAY_MS
    until_ms: int = BEGIN_MS + 365 * DAY_MS

    def covers(self, owner: Owner, append_ms: int) -> bool:
        in_scope = self.tenant in (None, owner.tenant_id)
        in_scope = in_scope and (self.environments is None or owner.environment in self.environments)
        in_scope = in_scope and (self.users is None or owner.user_id in self.users)
        return in_scope and self.from_ms <= append_ms < self.until_ms


class Signers(NamedTuple):
    rsa: rsa.RSAPrivateKey
    ec: ec.EllipticCurvePrivateKey
    secret: bytes
    strange: rsa.RSAPrivateKey

    def jwks(self) -> dict[str, Any]:
        public = {
            RSA_KID: jwt.algorithms.RSAAlgorithm.to_jwk(self.rsa.public_key(), as_dict=True),
            EC_KID: jwt.algorithms.ECAlgorithm.to_jwk(self.ec.public_key(), as_dict=True),
            SECRET_KID: jwt.algorithms.HMACAlgorithm.to_jwk(self.secret, as_dict=True),
        }
        return {"keys": [{**key, "kid": kid} for kid, key in public.items()]}


def signers() -> Signers:
    """New ones: what is signed with them is no part of what a seed decides."""
    keys = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    return Signers(
        next(keys), ec.generate_private_key(ec.SECP256R1()), b"a secret of thirty-two bytes and more", next(keys)
    )


SECRET = "what decisions are signed with, and nobody else has"


@dataclass(frozen=True)
class Sent:
    """A record of the control topic, as a consumer is given it."""

    append_ms: int
    held: bytes | None
    keyed: bytes | None
    headed: tuple[tuple[str, bytes | None], ...]

    def value(self) -> bytes | None:
        return self.held

    def key(self) -> bytes | None:
        return self.keyed

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [*self.headed]

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_LOG_APPEND_TIME, self.append_ms


def decided(append_ms: int, event: Control) -> Sent:
    timed = event.model_copy(update={"timestamp": append_ms})
    value, key = timed.model_dump_json(exclude_none=True).encode(), event.record_key
    return Sent(append_ms, value, key, signed(SECRET, key, value))


class Cast:
    def __init__(self, last_ms: int) -> None:
        """`last_ms`: when the last record is appended. Half-way, keys are revoked and tokens run out."""
        self.signers = signers()
        self._half_ms = (BEGIN_MS + last_ms) // 2
        self.decided: list[tuple[int, Control]] = []
        self.credentials = {tenant: [*self._keys(tenant), *self._tokens(tenant)] for tenant in SENDERS}
        self.deployment = self._key(ALL_TENANTS, environments=("ops",))  # for any tenant, where nobody has memories
        self.planted = ApiKeyText.new()  # an attacker's own
        self.witnesses = [self._key(tenant) for tenant in BYSTANDERS if tenant != ALL_TENANTS]

    def everything(self) -> Iterator[Credential]:
        for mine in self.credentials.values():
            yield from mine
        yield self.deployment
        yield from self.witnesses

    def _keys(self, tenant: str) -> Iterator[Credential]:
        yield self._key(tenant)
        yield self._key(tenant, users=USERS[:2])
        yield self._key(tenant, environments=(STAGING,))
        yield self._key(tenant, projects=(PROJECT,))
        yield self._key(tenant, until_ms=self._half_ms)

    def _key(self, tenant: str, **scope: Any) -> Credential:
        text, salt = ApiKeyText.new(), new_salt()
        fields = {"tenant_id": tenant, "name": text.name, "salt": salt, "hash": hash_of(salt, text.secret)}
        names = {"users": "end_users", "environments": "environments", "projects": "projects"}
        granted = {names[name]: [*given] for name, given in scope.items() if name in names}
        event = ApiKey.model_validate({"type": "api_key", **fields, **granted})
        self.decided.append((BEGIN_MS - DAY_MS, event))
        if "until_ms" in scope:
            revoked_ms = scope["until_ms"] - SETTLED_MS
            self.decided.append((revoked_ms, event.model_copy(update={"revoked": True})))
        of = None if tenant == ALL_TENANTS else tenant
        return Credential(text.name, of, KEY_HEADER, text.text(), text.secret, **scope)

    def _tokens(self, tenant: str) -> Iterator[Credential]:
        yield self._token(tenant, "rsa")
        yield self._token(tenant, "ec")
        yield self._token(tenant, "secret")
        yield self._token(tenant, "secret", users=USERS[2:4])
        yield self._token(tenant, "ec", until_ms=self._half_ms)
        yield self._token(tenant, "rsa", from_ms=self._half_ms)

    def _token(self, tenant: str, kind: str, **scope: Any) -> Credential:
        name = f"{kind} of {tenant}"
        made = Credential(name, tenant, TOKEN_HEADER, "", "", **scope)
        text = self.signed(kind, claims(made))
        return Credential(name, tenant, TOKEN_HEADER, f"Bearer {text}", text.rpartition(".")[2], **scope)

    def signed(self, kind: str, payload: dict[str, Any], **header: Any) -> str:
        algorithm, kid, key = {
            "rsa": ("RS256", RSA_KID, self.signers.rsa), "ec": ("ES256", EC_KID, self.signers.ec),
            "secret": ("HS256", SECRET_KID, self.signers.secret), "strange": ("RS256", RSA_KID, self.signers.strange),
        }[kind]  # fmt: skip
        return jwt.encode(payload, key, algorithm, headers={"kid": kid} | header)  # type: ignore[arg-type]


def claims(credential: Credential) -> dict[str, Any]:
    """What a token says that is good for as much as this."""
    scopes = {"end_users": credential.users, "environments": credential.environments, "projects": credential.projects}
    given = {name: [*scope] for name, scope in scopes.items() if scope is not None}
    times = {"nbf": credential.from_ms / 1000, "exp": credential.until_ms / 1000}
    who = {"iss": ISSUER, "aud": AUDIENCE, "sub": credential.name, "tenant_id": credential.tenant}
    return json.loads(json.dumps({**who, **times, **given}))  # type: ignore[no-any-return]
