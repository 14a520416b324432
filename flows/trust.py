"""Who is believed, out of the settings."""

from pathlib import Path

from recallflow.errors import UsageError
from recallflow.flows.security_settings import AuthSettings
from recallflow.operators.authorise import Trust
from recallflow.operators.tokens import Issuer
from recallflow.signing_keys import SigningKey, read_jwks


def trust_of(auth: AuthSettings, secrets: dict[str, bytes]) -> Trust:
    """What the verdict on records needs of the settings. `secrets`: what `known_secrets` gave, and what is added to it
    later."""
    return Trust(auth.mode, Issuer(auth.issuer, auth.audience, auth.tenant_claim), secrets)


def known_secrets(auth: AuthSettings) -> dict[str, bytes]:
    """The secrets that tokens may be signed with, by fingerprint: the one that is set, and those of a JWKS file. An
    address gives out none, as others have read them there. Raises UsageError."""
    keys = [] if auth.secret is None else [SigningKey.of_secret(auth.secret.encode())]
    if auth.jwks is not None and not auth.jwks.startswith(("http://", "https://")):
        try:
            keys += read_jwks(Path(auth.jwks).read_bytes())[0]
        except OSError as error:
            raise UsageError(f"auth.jwks: cannot read {auth.jwks}: {error.strerror}") from error
    return {key.fingerprint: key.secret for key in keys if key.secret is not None}
