"""Who is believed, out of the settings."""

from collections.abc import Mapping

from recallflow.flows.security_settings import AuthSettings
from recallflow.flows.token_keys import key_source
from recallflow.operators.authorise import Trust
from recallflow.operators.tokens import Issuer
from recallflow.signing_keys import SigningKey


def trust_of(auth: AuthSettings, secrets: Mapping[str, bytes]) -> Trust:
    """What the verdict on records needs of the settings. `secrets`: by fingerprint; more may be added later."""
    return Trust(auth.mode, Issuer(auth.issuer, auth.audience, auth.tenant_claim), secrets)


def known_secrets(auth: AuthSettings) -> dict[str, bytes]:
    """The secrets that tokens may be signed with, by fingerprint, for who announces none (`TokenKeys` does): the one
    that is set, and those of a JWKS file. An address gives out none, as others have read them there. Raises
    SourceError: without a secret that it needs, a verdict would be another one."""
    if auth.mode == "off":
        return {}
    keys = [] if auth.secret is None else [SigningKey.of_secret(auth.secret.encode())]
    source = key_source(auth)
    if source is not None and not source.is_remote:
        keys += source.read().keys
    return {key.fingerprint: key.secret for key in keys if key.secret is not None}
