"""Credentials: headers, API keys, hashes of secrets, master keys, signatures of control events, keys of JWT signatures
in JWKS documents (RFC 7517), and masking of credentials in records and log lines.

The signature of a control event is an HMAC-SHA256 over key and value, in a header. Senders and readers share its
secret as a setting, so that write access to the control topic is not enough to send a control event.

JSON fields are masked by name, at any depth, also in incomplete JSON; API keys and JWTs anywhere, by their shape."""

import hashlib
import hmac
import json
import logging
import re
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import orjson
from pydantic import TypeAdapter, ValidationError

from recallflow.errors import UsageError
from recallflow.fields import Name

TOKEN_HEADER, KEY_HEADER, USER_HEADER = "authorization", "x-api-key", "x-end-user-id"
# Lower case; names are compared case-insensitively.
CREDENTIAL_HEADERS = frozenset((TOKEN_HEADER, KEY_HEADER, "proxy-authorization", "cookie", "set-cookie"))
Headers = tuple[tuple[str, bytes | None], ...]
NAME_BYTES, SECRET_BYTES, SALT_BYTES = 8, 32, 16
_API_KEY = re.compile(r"rfk_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
API_KEY_SHAPE = rb"rfk_[0-9a-f]{16}_"  # followed by the secret
TOKEN_SHAPE = rb"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\."  # followed by the signature
# An API key or a JWT anywhere in bytes; the pattern runs in linear time.
_SHAPE = re.compile(API_KEY_SHAPE + rb"[A-Za-z0-9_-]{43}|" + TOKEN_SHAPE)
SIGNATURE = "recallflow-signature"
SECRET_BYTES_MIN = 32  # minimum length: a reader of a signed event could guess a shorter secret
_LENGTH_BYTES = 8
RSA_BITS_MIN, RSA_BITS_MAX = 2_048, 16_384  # OpenSSL verifies nothing with longer keys
KEYS_MAX = 100  # maximum number of keys in one document
# Key type → its only accepted algorithm, and the JWK members of a public key or secret.
_KEY_TYPES = {"RSA": ("RS256", ("e", "kty", "n")), "EC": ("ES256", ("crv", "kty", "x", "y")),
              "oct": ("HS256", ("k", "kty"))}  # fmt: skip
_kid: TypeAdapter[str] = TypeAdapter(Name)
Token = str | Callable[[], str]
_TOKEN_TEXT = re.compile(r"[!-~]+")


class ApiKeyText(NamedTuple):
    """API key in the form `rfk_NAME_SECRET`."""

    name: str  # 16 hexadecimal digits; the control event of the key has the same name
    secret: str  # 32 random bytes, in base64url

    @classmethod
    def new(cls) -> Self:
        return cls(secrets.token_hex(NAME_BYTES), secrets.token_urlsafe(SECRET_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse `rfk_NAME_SECRET`; return None for other text."""
        match = _API_KEY.fullmatch(text)
        return None if match is None else cls(*match.groups())

    def text(self) -> str:
        """Return the complete key. Show it once, and never log it."""
        return f"rfk_{self.name}_{self.secret}"

    def __repr__(self) -> str:
        return f"ApiKeyText({self.name})"


class ClientCredentials:
    """API key or token of a client, and optionally its only user, `end_user`. Error messages contain no secret."""

    def __init__(self, api_key: str | None = None, token: Token | None = None, end_user: str | None = None) -> None:
        """Check the credentials. `token` is a JWT, or a function that returns a current one. Raise UsageError."""
        if api_key is not None and token is not None:
            raise UsageError("give api_key or token, not both")
        if api_key is not None and not (isinstance(api_key, str) and ApiKeyText.parse(api_key)):
            raise UsageError("api_key is no API key: give the text that `recallflow keys create` printed, rfk_…")
        self._api_key, self._token, self._end_user = api_key, token, end_user
        if not callable(token):
            self._token_header()

    def __repr__(self) -> str:
        return "ClientCredentials(…)"

    def headers(self, user_id: str) -> Headers:
        """Return the headers of a user's record. Raise UsageError if the client is restricted to another user."""
        if self._end_user is not None and user_id != self._end_user:
            raise UsageError(f"user_id is {user_id!r}, and this client is for {self._end_user!r}")
        user = () if self._end_user is None else ((USER_HEADER, user_id.encode()),)
        key = () if self._api_key is None else ((KEY_HEADER, self._api_key.encode()),)
        return (*key, *self._token_header(), *user)

    def _token_header(self) -> Headers:
        if self._token is None:
            return ()
        token = self._token() if callable(self._token) else self._token
        if not isinstance(token, str) or not _TOKEN_TEXT.fullmatch(token):
            raise UsageError("token is no JWT: give a JWT as text, or a function that returns it")
        return ((TOKEN_HEADER, b"Bearer " + token.encode()),)


def new_key() -> tuple[ApiKeyText, dict[str, str]]:
    """Return a new API key, and the fields of the control event that registers it."""
    key, salt = ApiKeyText.new(), secrets.token_hex(SALT_BYTES)
    return key, {"name": key.name, "salt": salt, "hash": hash_secret(salt, key.secret)}


def hash_secret(salt: str, secret: str) -> str:
    """Return the stored hash of an API key's secret. With 256 random bits, no slow hash is necessary."""
    return hmac.digest(salt.encode(), secret.encode(), "sha256").hex()


def fingerprint(secret: bytes) -> str:
    """Return an id of a token secret. It does not reveal the secret, which has at least 32 bytes."""
    return hashlib.sha256(b"recallflow token secret:" + secret).hexdigest()


def without_credentials(headers: Headers) -> Headers:
    return tuple(header for header in headers if not _is_credential(*header))


def _is_credential(name: str, value: bytes | None) -> bool:
    """Return whether a header is a credential: by its name or, as that may be misspelt, by a key or token in it."""
    if name.strip().lower() in CREDENTIAL_HEADERS or contains_credential(name.encode()):
        return True
    return value is not None and contains_credential(value)


def contains_credential(data: bytes) -> bool:
    return _SHAPE.search(data) is not None


class MasterKey(Protocol):
    """Key that encrypts the secret of a state directory, used when a directory is created or opened."""

    @property
    def name(self) -> str:
        """Return a readable id of the key, which is not secret."""

    def wrap(self, secret: bytes) -> bytes:
        """Return the encrypted secret. Raise MasterKeyError."""

    def unwrap(self, wrapped: bytes) -> bytes:
        """Return the decrypted secret. Raise MasterKeyError, also for a secret of another key."""


def check_secret(name: str, secret: str | None) -> None:
    """Raise UsageError for a short secret, without showing it."""
    if secret is not None and (not isinstance(secret, str) or len(secret.encode()) < SECRET_BYTES_MIN):
        raise UsageError(f"{name} must be text of {SECRET_BYTES_MIN} bytes or more: make a new one")


def sign(secret: str | None, key: bytes, value: bytes) -> tuple[tuple[str, bytes], ...]:
    """Return the headers that sign a record; none without a secret."""
    return () if secret is None else ((SIGNATURE, _signature(secret, key, value)),)


def has_signature(headers: Headers | None) -> bool:
    return any(name == SIGNATURE for name, _ in headers or ())


def is_signed(secret: str, key: bytes | None, value: bytes | None, headers: Headers | None) -> bool:
    """Return whether a record has exactly one signature, and it matches the secret."""
    signatures = [signature for name, signature in headers or () if name == SIGNATURE]
    if len(signatures) != 1 or key is None or value is None:
        return False
    return hmac.compare_digest(signatures[0] or b"", _signature(secret, key, value))


def _signature(secret: str, key: bytes, value: bytes) -> bytes:
    # The key's length comes first, so that no other key and value with the same bytes have the same signature.
    signed_bytes = len(key).to_bytes(_LENGTH_BYTES) + key + value
    return hmac.new(secret.encode(), signed_bytes, hashlib.sha256).hexdigest().encode()


MASK = b"***"
# Suffixes of field names that hold credentials, in lower case and without separators.
_ENDINGS = (
    *("token", "apikey", "authorization", "password", "passwd", "passphrase", "secret", "secrets", "jwt"),
    *("credential", "credentials", "cookie", "cookies", "privatekey", "secretkey", "accesskey", "masterkey"),
)
# Without a match, no field has a credential's name. Escapes such as \u006b match, because one could hide a name.
_NAMES = re.compile(rb"token|key|authori|passw|passphrase|secret|jwt|credential|cookie|\\u00", re.IGNORECASE)
_SEPARATORS = re.compile(r"[^a-z0-9]+")
# The patterns run in linear time on any bytes.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_STRINGS = re.compile(rb"(" + _STRING + rb")(\s*+:)?", re.DOTALL)
_VALUE = re.compile(rb"\s*+(?:(?P<scalar>" + _STRING + rb'|[^\s,"{}\[\]]++)|(?P<opening>[{\[]))', re.DOTALL)
_BRACKETS = re.compile(_STRING + rb"|([{\[])|([}\]])", re.DOTALL)
_KEY_OR_TOKEN = re.compile(rb"(" + API_KEY_SHAPE + rb")[A-Za-z0-9_-]++|" + TOKEN_SHAPE + rb"[A-Za-z0-9_-]*+")
_UNMASKED_PAIR = re.compile(rb'("[^"\\\n]{1,64}+")(\s*+:\s*+)(?!"\*\*\*")"[^"]*+"?')
_QUOTED_NAME = r"'[^'\n]*?(?:token|key|authorization|password|secret|credentials?)'"
_QUOTED_PAIR = re.compile(rf"({_QUOTED_NAME}\s*[:=]\s*)b?'[^'\n]*'", re.IGNORECASE)
_PROSE = r"(?!(?:authenticat|authori[sz]at|credential)[a-z]*\b)"  # as in "basic authentication failed"
_BEARER = re.compile(rf"\b(bearer|basic)\s+{_PROSE}[A-Za-z0-9+/._~=-]{{8,}}", re.IGNORECASE)


def mask(data: bytes) -> tuple[bytes, int]:
    """Return bytes with masked credentials, and the number of masked values."""
    masked, fields = data, 0
    if _NAMES.search(data):
        masked, fields = _mask_fields(data)
        try:
            orjson.loads(masked)
        except ValueError:  # after an unbalanced quote, `_mask_fields` takes every later name for a value
            masked, more = _UNMASKED_PAIR.subn(_mask_pair, masked)
            fields += more
    masked, shapes = _KEY_OR_TOKEN.subn(lambda match: (match[1] or b"") + MASK, masked)
    return masked, fields + shapes


def mask_text(text: str) -> str:
    """Return a log line with masked credentials, also in Python literals and headers."""
    masked = mask(text.encode(errors="surrogateescape"))[0].decode(errors="surrogateescape")
    return _BEARER.sub(r"\1 ***", _QUOTED_PAIR.sub(r"\1'***'", masked))


class MaskingFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return mask_text(super().format(record))


def _mask_pair(match: re.Match[bytes]) -> bytes:
    return match[1] + match[2] + b'"' + MASK + b'"' if _names_credential(match[1]) else match[0]


def _mask_fields(data: bytes) -> tuple[bytes, int]:
    parts, count, copied, at = list[bytes](), 0, 0, 0
    while (name := _STRINGS.search(data, at)) is not None:
        at = name.end()
        if name[2] is None or not _names_credential(name[1]) or (value := _VALUE.match(data, at)) is None:
            continue
        if value["opening"] is not None:
            begin, at = value.start("opening"), _closing(data, value.start("opening"))
        else:
            begin, at = value.span("scalar")
            if value["scalar"] in (b"null", b"true", b"false", b'""'):
                continue
        parts += data[copied:begin], b'"', MASK, b'"'
        copied, count = at, count + 1
    return b"".join((*parts, data[copied:])), count


def _names_credential(name: bytes) -> bool:
    """Return whether a field name (with JSON quotes) is the name of a credential."""
    text = name.decode(errors="replace")
    if "\\" in text:
        try:
            text = json.loads(text)
        except ValueError:
            return False
    return _SEPARATORS.sub("", text.lower()).endswith(_ENDINGS)


def _closing(data: bytes, begin: int) -> int:
    """Return the end of the object or list at an offset; the end of the bytes if it is not closed."""
    depth = 0
    for bracket in _BRACKETS.finditer(data, begin):
        depth += (bracket[1] is not None) - (bracket[2] is not None)
        if depth == 0:
            return bracket.end()
    return len(data)


class SigningKey(NamedTuple):
    """A key of one algorithm. `name` is its `kid` or its fingerprint; `jwk` the public key, None for a secret."""

    name: str
    algorithm: str
    fingerprint: str
    jwk: dict[str, Any] | None
    secret: bytes | None

    @classmethod
    def of_secret(cls, secret: bytes, kid: str | None = None) -> Self:
        """Return an HS256 key. Raise UsageError for a short secret."""
        if (size := len(secret)) < SECRET_BYTES_MIN:
            raise UsageError(f"a secret of HS256 has {SECRET_BYTES_MIN} bytes or more, not {size}: make a new one")
        secret_id = fingerprint(secret)
        return cls(kid or secret_id, "HS256", secret_id, None, secret)

    def __repr__(self) -> str:
        return f"SigningKey({self.name}, {self.algorithm})"


class Jwks(NamedTuple):
    """Content of a JWKS document. Keys with `invalid_kids` are invalid, but are not revoked as missing."""

    keys: list[SigningKey]
    problems: list[str]
    invalid_kids: frozenset[str] = frozenset()


def read_jwks(document: bytes) -> Jwks:
    """Return the keys of a document. Raise UsageError for an invalid document; no message contains a part of a key."""
    try:
        entries = json.loads(document)["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError('not a JWKS document: it must be a JSON object with a list "keys"') from None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise UsageError(f'not a JWKS document: "keys" must be a list of at most {KEYS_MAX}')
    keys, problems, invalid_kids = dict[str, SigningKey](), list[str](), set[str]()
    for number, jwk in enumerate(entries):
        try:
            key = read_key(jwk)
        except UsageError as error:
            problems.append(f"keys.{number}: {error}")
            if isinstance(jwk, dict) and isinstance(kid := jwk.get("kid"), str):
                invalid_kids.add(kid)
            continue
        if keys.setdefault(key.name, key) is not key:
            problems.append(f"keys.{number}: an earlier key has the same kid")
    return Jwks(list(keys.values()), problems, frozenset(invalid_kids))


def read_key(jwk: object) -> SigningKey:
    """Return one key of a document (a JWK). Raise UsageError for a key that cannot verify signatures."""
    import jwt  # an engine without tokens needs neither of these libraries
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if not isinstance(jwk, dict) or str(jwk.get("kty")) not in _KEY_TYPES:
        raise UsageError(f"its kty is none of {', '.join(_KEY_TYPES)}")
    algorithm, members = _KEY_TYPES[jwk["kty"]]
    if jwk.get("alg", algorithm) != algorithm or jwk.get("use", "sig") != "sig":
        raise UsageError(f"it is not for signatures with {algorithm}")
    if jwk.get("crv", "P-256") != "P-256":
        raise UsageError("a key of ES256 must have the curve P-256")
    try:
        kid = None if jwk.get("kid") is None else _kid.validate_python(jwk["kid"], strict=True)
        public = {name: jwk[name] for name in members}
        key = jwt.PyJWK(public, algorithm).key
    except (ValidationError, jwt.PyJWTError, KeyError, ValueError, TypeError):
        raise UsageError("it cannot be read") from None
    if algorithm == "HS256":
        return SigningKey.of_secret(key, kid)
    if isinstance(key, RSAPublicKey) and not RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX:
        raise UsageError(f"a key of RS256 has {RSA_BITS_MIN} to {RSA_BITS_MAX} bits")
    thumbprint = hashlib.sha256(json.dumps(public, separators=(",", ":"), sort_keys=True).encode()).hexdigest()
    return SigningKey(kid or thumbprint, algorithm, thumbprint, public, None)
