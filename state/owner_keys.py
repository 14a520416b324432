"""The keys of one state partition: each owner has one, wrapped by a tenant key, which the directory's key wraps.

An owner gets its key before any of its data is stored or put into a snapshot. Destroying the key destroys all data
sealed with it, in every copy."""

from collections.abc import Callable, Mapping

from recallflow.caching import Kept
from recallflow.errors import DecryptionFailed
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.ciphers import Cipher, new_key
from recallflow.state.keyring import Keyring

CACHE_BYTES = 2 * 1024 * 1024  # of owners' keys, about ten thousand
_NAME = keys.OWNER_BYTES


class OwnerKeys:
    """Keys of tenants and owners, read on demand. The caller stores new ones."""

    def __init__(self, keyring: Keyring, get: Callable[[bytes], bytes | None]) -> None:
        """`get`: reads a record of the partition, as it is stored or staged."""
        self._keyring = keyring
        self._get = get
        # By owner. Raises DecryptionFailed for one who has no key, or whose key cannot be opened.
        self.ciphers = Kept[bytes, Cipher](self._read, CACHE_BYTES)
        self._tenant_ciphers = Kept[bytes, Cipher](self._read_tenant, CACHE_BYTES)  # a tenant's key never changes

    def begin(self, owner: Owner, key: bytes) -> Mapping[bytes, bytes]:
        """Return the records of a new owner's key; nothing for an existing one. `key` is the prefix of the owner's
        records. Raise DecryptionFailed if its key or its tenant's cannot be opened."""
        if key in self.ciphers:
            return {}
        place = keys.owner_key(key)
        if self._get(place) is not None:
            _ = self.ciphers[key]
            return {}
        user, tenant = self._keyring.user(owner.tenant_id, owner.user_id), self._keyring.tenant(owner.tenant_id)
        begun, wrapping = self._begin_tenant(tenant)
        begun[place] = user + tenant + wrapping.seal(place + user + tenant, new_key())
        entry = keys.user_owner(user, key)
        begun[entry] = owner.environment.encode()
        return begun

    def forget(self, owner: bytes, user: bytes) -> Mapping[bytes, None]:
        """Return the deletions that destroy the key of a user's owner."""
        self.ciphers.pop(owner, None)
        return {keys.owner_key(owner): None, keys.user_owner(user, owner): None}

    def _begin_tenant(self, tenant: bytes) -> tuple[dict[bytes, bytes], Cipher]:
        """Return the records of a new tenant key, and its cipher, which is cached once stored."""
        place = keys.tenant_key(tenant)
        if tenant in self._tenant_ciphers or self._get(place) is not None:
            return {}, self._tenant_ciphers[tenant]
        key = new_key()
        return {place: self._keyring.cipher.seal(place, key)}, Cipher(key)

    def _read_tenant(self, tenant: bytes) -> Cipher:
        place = keys.tenant_key(tenant)
        stored = self._get(place)
        if stored is None:
            raise DecryptionFailed("the key of a tenant is lost")
        return Cipher(self._keyring.cipher.open(place, stored))

    def _read(self, owner: bytes) -> Cipher:
        place = keys.owner_key(owner)
        stored = self._get(place)
        if stored is None:
            raise DecryptionFailed("the key of an owner is lost")
        user, tenant, wrapped = stored[:_NAME], stored[_NAME : 2 * _NAME], stored[2 * _NAME :]
        return Cipher(self._tenant_ciphers[tenant].open(place + user + tenant, wrapped))
