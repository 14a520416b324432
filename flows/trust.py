"""Who is believed, out of the settings."""

from recallflow.flows.security_settings import AuthSettings
from recallflow.flows.token_keys import key_source
from recallflow.operators.authorise import Trust
from recallflow.operators.tokens import Issuer
from recallflow.signing_keys import SigningKey


def trust_of(auth: AuthSettings, secrets: dict[str, bytes]) -> Trust:
    """What the verdict on records needs of the settings. `secrets`: what `known_secrets` gave, and what is added to it
    later."""
    return Trust(auth.mode, Issuer(auth.issuer, auth.audience, auth.tenant_claim), secrets)


def known_secrets(auth: AuthSettings) -> dict[str, bytes]:
    """The secrets that tokens may be signed with, by fingerprint: the one that is set, and those of a JWKS file. An
    address gives out none, as others have read them there. Raises SourceError: without a secret that it needs, a
    verdict would be another one."""
    keys = [] if auth.secret is None else [SigningKey.of_secret(auth.secret.encode())]
    source = key_source(auth)
    if source is not None and not source.is_remote:
        keys += source.read()[0]
    return {key.fingerprint: key.secret for key in keys if key.secret is not None}
