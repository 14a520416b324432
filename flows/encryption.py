"""What the settings of encryption name, opened."""

from recallflow.connectors.kms import KmsMasterKey
from recallflow.connectors.master_keys import parse_master_key, read_master_key
from recallflow.flows.security_settings import EncryptionSettings
from recallflow.master_key import MasterKey
from recallflow.state.at_rest import AtRest


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
