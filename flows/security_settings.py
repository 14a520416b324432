"""Settings of authorisation, and of encryption at rest."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from recallflow.connectors.master_keys import KmsMasterKey, parse_master_key, read_master_key
from recallflow.credentials import KEY_HEADER, ApiKeyText
from recallflow.errors import UsageError
from recallflow.flows.settings import refuse_unless
from recallflow.master_key import MasterKey
from recallflow.signatures import check_secret
from recallflow.state.at_rest import AtRest

AuthMode = Literal["auto", "off", "required"]
MODES = ("auto", "off", "required")
DAY_S = 86_400


@dataclass(frozen=True)
class AuthSettings:
    """Who may send records.

    `mode`: `required` asks every record for credentials, `off` none; `auto` those that were appended after the first
    key was configured. `jwks`: a file, or the address of one, with the keys that JWTs are signed with; `secret`: one of
    HS256 beside it. `issuer` and `audience` are those that a token must name; `tenant_claim`: which of its claims names
    the tenant. `jwks_refresh_s`: after which time an address is asked again.

    `api_key`: what our own commands and the enrichment flow send with. `control_secret`: with it, control events count
    only where they are signed."""

    mode: str = "auto"
    jwks: str | None = None
    secret: str | None = field(default=None, repr=False)
    issuer: str | None = None
    audience: str | None = None
    tenant_claim: str = "tenant_id"
    jwks_refresh_s: float = 300.0
    api_key: str | None = field(default=None, repr=False)
    control_secret: str | None = field(default=None, repr=False)

    @property
    def credentials(self) -> tuple[tuple[str, bytes | None], ...]:
        """The headers that records of ours are sent with."""
        return () if self.api_key is None else ((KEY_HEADER, self.api_key.encode()),)

    def __post_init__(self) -> None:
        # No message shows what was given: it may be a secret.
        if self.api_key is not None and ApiKeyText.parse(self.api_key) is None:
            raise UsageError("auth.api_key is no API key: give all that `recallflow keys create` printed, rfk_…")
        check_secret("auth.secret", self.secret)
        check_secret("auth.control_secret", self.control_secret)
        refuse_unless(
            self,
            ("mode", "auto, off or required", self.mode in MODES),
            ("tenant_claim", "a claim's name", self.tenant_claim != ""),
            ("jwks_refresh_s", "1 to 86,400", 1 <= self.jwks_refresh_s <= DAY_S),
        )


@dataclass(frozen=True)
class EncryptionSettings:
    """What is readable on disk. Without a master key, nothing is encrypted but what waits in snapshots.

    `master_key_file`: a file of the master key, 32 bytes in base64; `master_key`: the same, itself. `kms_key`: the id
    or ARN of a key of AWS KMS instead, of the region `kms_region`, at `kms_endpoint` where that is not AWS's own.
    `encrypt_vectors`: vectors too."""

    master_key_file: Path | None = None
    master_key: str | None = field(default=None, repr=False)
    kms_key: str | None = None
    kms_region: str | None = None
    kms_endpoint: str | None = None
    encrypt_vectors: bool = True

    def __post_init__(self) -> None:
        given = [name for name in ("master_key_file", "master_key", "kms_key") if getattr(self, name) is not None]
        if len(given) > 1:  # what was given is a secret, and not shown
            raise UsageError(f"{' and '.join(given)} are given, and there is one master key: leave out all but one")


def open_at_rest(settings: EncryptionSettings) -> AtRest:
    """What protects the state. Raises MasterKeyError."""
    return AtRest(_master_key(settings), settings.encrypt_vectors)


def _master_key(settings: EncryptionSettings) -> MasterKey | None:
    if settings.master_key_file is not None:
        return read_master_key(settings.master_key_file)
    if settings.master_key is not None:
        return parse_master_key(settings.master_key)
    if settings.kms_key is not None:
        return KmsMasterKey(settings.kms_key, settings.kms_region, settings.kms_endpoint)
    return None
