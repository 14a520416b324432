"""Keys, tokens and control events of invented senders, and the verdicts on their records."""

import base64
import json
from collections.abc import Mapping
from typing import Any

import jwt
import orjson
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from recallflow.control import Control, ControlHistory
from recallflow.credentials import (
    KEY_HEADER,
    TOKEN_HEADER,
    ApiKeyText,
    Headers,
    SigningKey,
    fingerprint,
    hash_secret,
    read_jwks,
)
from recallflow.operators.authorise import Authoriser, Trust
from recallflow.operators.events import Item, decode
from recallflow.operators.grants import Issuer
from recallflow.parsing import parse_control
from recallflow.records import Position, Record

RSA_KEY, OTHER_RSA_KEY = (rsa.generate_private_key(65537, 2048) for _ in range(2))
EC_KEY = ec.generate_private_key(ec.SECP256R1())
SECRET = b"a secret of thirty-two bytes, or more"

NOW_MS = 1_800_000_000_000
BEFORE_MS = NOW_MS - 60_000  # when keys were decided on
EXPIRES_S = NOW_MS // 1_000 + 600
EVENT = {"type": "message", "tenant_id": "acme", "user_id": "ann", "session_id": "s", "role": "user", "content": "Tea."}
QUERY = {"type": "recall", "tenant_id": "acme", "user_id": "ann", "query": "What?", "id": "q"}
CLAIMS = {"tenant_id": "acme", "sub": "service", "exp": EXPIRES_S}


def rsa_jwk(key: rsa.RSAPrivateKey = RSA_KEY, **more: Any) -> dict[str, Any]:
    return {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())), **more}


def ec_jwk(key: ec.EllipticCurvePrivateKey = EC_KEY, **more: Any) -> dict[str, Any]:
    return {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), **more}


def oct_jwk(secret: bytes = SECRET, **more: Any) -> dict[str, Any]:
    return {"kty": "oct", "k": base64.urlsafe_b64encode(secret).rstrip(b"=").decode(), **more}


def token(key: Any = RSA_KEY, algorithm: str = "RS256", kid: str | None = "r", **claims: Any) -> str:
    said = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(said, key, algorithm, headers=None if kid is None else {"kid": kid})


def bearer(text: str | bytes) -> Headers:
    return ((TOKEN_HEADER, b"Bearer " + (text.encode() if isinstance(text, str) else text)),)


def with_key(key: ApiKeyText) -> Headers:
    return ((KEY_HEADER, key.text().encode()),)


def token_key(key: SigningKey, **more: Any) -> Control:
    """The announcement of a key that tokens are signed with."""
    said = {"name": key.name, "algorithm": key.algorithm, "jwk": key.jwk, "fingerprint": key.fingerprint}
    return parse_control(orjson.dumps({"type": "token_key", "tenant_id": "*", **said, **more}))


def api_key(key: ApiKeyText, tenant_id: str = "acme", **more: Any) -> Control:
    """The decision that makes an API key."""
    salt = "salt"
    said = {"name": key.name, "salt": salt, "hash": hash_secret(salt, key.secret)}
    return parse_control(orjson.dumps({"type": "api_key", "tenant_id": tenant_id, **said, **more}))


def signing_keys() -> list[SigningKey]:
    """One of each algorithm: `r`, `e`, and `o`."""
    keys = read_jwks(orjson.dumps({"keys": [rsa_jwk(kid="r"), ec_jwk(kid="e")]})).keys
    return [*keys, SigningKey.of_secret(SECRET, "o")]


class Senders:
    def __init__(
        self, mode: str = "required", issuer: Issuer | None = None, decisions: ControlHistory | None = None
    ) -> None:
        self.decisions = ControlHistory() if decisions is None else decisions
        self._trust = Trust(mode, issuer or Issuer(), {fingerprint(SECRET): SECRET})
        self.restart()

    def restart(self) -> None:
        self.authoriser = Authoriser(self.decisions, self._trust)

    def decide(self, *events: Control, at_ms: int = BEFORE_MS) -> None:
        for event in events:
            self.decisions.add(at_ms, event)

    def key(self, tenant_id: str = "acme", at_ms: int = BEFORE_MS, **more: Any) -> ApiKeyText:
        key = ApiKeyText.new()
        self.decide(api_key(key, tenant_id, **more), at_ms=at_ms)
        return key

    def judge(self, headers: Headers | None, event: Mapping[str, Any] | bytes = EVENT, at_ms: int = NOW_MS) -> Item:
        value = event if isinstance(event, bytes) else orjson.dumps(event)
        return self.authorise(Record(Position("memory.events", 0, 7), value, at_ms, b"acme/ann", headers=headers))

    def authorise(self, record: Record) -> Item:
        return self.authoriser.authorise(decode(record))
