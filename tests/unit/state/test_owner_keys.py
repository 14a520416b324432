"""An owner has a key from its first record on, and erasure makes its data unreadable."""

from collections.abc import Callable

import pytest

from recallflow.errors import DecryptionFailed
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.encryption import Keyring
from recallflow.state.partition import Partition
from tests.unit.state.member import KEYRING

ANN, BO = Owner("acme", "prod", "ann"), Owner("acme", "prod", "bo")
ANNS_TESTS = Owner("acme", "test", "ann")
Opened = Callable[..., Partition]


def seal(partition: Partition, owner: bytes, label: bytes, value: bytes) -> bytes:
    return partition._owner_keys.ciphers[owner].seal(label, value)


def unseal(partition: Partition, owner: bytes, label: bytes, sealed: bytes) -> bytes:
    return partition._owner_keys.ciphers[owner].open(label, sealed)


def test_an_owners_key_is_made_once_and_found_again(opened: Opened) -> None:
    partition, ann = opened(), KEYRING.owner(ANN)
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    sealed = seal(partition, ann, b"held", b"tea")
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    assert unseal(partition, ann, b"held", sealed) == b"tea"
    partition.commit()
    partition = opened()
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    assert unseal(partition, ann, b"held", sealed) == b"tea"


def test_sealed_value_opens_for_its_owner_and_label_only(opened: Opened) -> None:
    partition = opened()
    for owner in (ANN, BO, ANNS_TESTS):
        partition.begin_owner(owner, KEYRING.owner(owner))
    sealed = seal(partition, KEYRING.owner(ANN), b"held", b"tea")
    for owner, label, value in [
        (BO, b"held", sealed),
        (ANNS_TESTS, b"held", sealed),
        (ANN, b"waiting", sealed),
        (ANN, b"held", sealed[:-1] + bytes([sealed[-1] ^ 1])),
        (ANN, b"held", sealed[:20]),
        (ANN, b"held", b""),
        (ANN, b"held", b"tea"),
    ]:
        with pytest.raises(DecryptionFailed):
            unseal(partition, KEYRING.owner(owner), label, value)


def test_nothing_that_was_sealed_with_a_forgotten_key_opens(opened: Opened) -> None:
    partition, ann = opened(), KEYRING.owner(ANN)
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    partition.begin_owner(BO, KEYRING.owner(BO))
    sealed = seal(partition, ann, b"held", b"tea")
    bos = seal(partition, KEYRING.owner(BO), b"held", b"milk")
    partition.commit()
    partition.forget_key(ann, KEYRING.user("acme", "ann"))
    with pytest.raises(DecryptionFailed):
        unseal(partition, ann, b"held", sealed)
    partition.begin_owner(ANN, KEYRING.owner(ANN))  # she begins anew
    with pytest.raises(DecryptionFailed):
        unseal(partition, ann, b"held", sealed)
    partition.commit()
    partition = opened()
    with pytest.raises(DecryptionFailed):
        unseal(partition, ann, b"held", sealed)
    assert unseal(partition, KEYRING.owner(BO), b"held", bos) == b"milk"


def test_user_is_found_in_all_its_environments_alone(opened: Opened) -> None:
    partition = opened()
    for owner in (ANN, BO, ANNS_TESTS, Owner("other", "prod", "ann")):
        partition.begin_owner(owner, KEYRING.owner(owner))
    assert set(partition.owners_of("acme", "ann")) == {ANN, ANNS_TESTS}
    assert partition.owners_of("acme", "nobody") == []
    partition.forget_key(KEYRING.owner(ANN), KEYRING.user("acme", "ann"))
    assert partition.owners_of("acme", "ann") == [ANNS_TESTS]
    partition.commit()
    assert opened().owners_of("acme", "ann") == [ANNS_TESTS]


@pytest.mark.parametrize("lost", [keys.OWNER_KEYS, keys.TENANT_KEYS])
def test_lost_key_opens_nothing_and_is_not_replaced(opened: Opened, lost: bytes) -> None:
    partition, ann = opened(), KEYRING.owner(ANN)
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    sealed = seal(partition, ann, b"held", b"tea")
    partition.commit()
    ((key, value),) = partition.scan(lost)
    partition.stage({key: value[:-1] + bytes([value[-1] ^ 1])})
    partition.commit()
    partition = opened()
    for use in (
        lambda: partition.begin_owner(ANN, KEYRING.owner(ANN)),
        lambda: unseal(partition, ann, b"held", sealed),
    ):
        with pytest.raises(DecryptionFailed):
            use()


def test_keys_are_another_directorys_no_use(opened: Opened) -> None:
    partition = opened()
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    partition.commit()
    stolen = dict(partition.scan(keys.OWNER_KEYS)) | dict(partition.scan(keys.TENANT_KEYS))
    assert KEYRING.owner(ANN) in {key[1:] for key in stolen}
    partition = opened(Keyring(bytes(31) + b"\x01"))
    with pytest.raises(DecryptionFailed):
        seal(partition, KEYRING.owner(ANN), b"held", b"tea")
