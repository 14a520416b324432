"""Encrypted directories, and the keys of their owners."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pytest

from recallflow.connectors.master_keys import LocalMasterKey
from recallflow.errors import DecryptionFailed, MasterKeyError
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.owner import Owner
from recallflow.state import keys
from recallflow.state.checkpoint import checkpoint, restore
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest, Keyring
from recallflow.state.partition import NO_CHANGE, Partition
from recallflow.state.rows import Vectors
from recallflow.state.verify import verify
from tests.event_log import comparable, final_questions, hash_of, make_log
from tests.readable import contains

KEY, OTHER = (LocalMasterKey(bytes([number] * 32)) for number in (1, 2))
ENCRYPTED = AtRest(KEY)
KEYRING = Keyring(bytes(32), ENCRYPTED)
PLAIN_VECTORS = AtRest(KEY, encrypt_vectors=False)
SETTINGS = Settings(partitions=2)
# What the log's owners say, are called, name and are found by: texts, ids, names, stems.
SAID = ["walnut", "anchor stays", "harbour", "Lake Como", "Cleo Marsh", "globex", "drifter", "zoë/🦦", "bicycl"]


def found_in(folder: Path, at_rest: AtRest, said: list[bytes]) -> set[bytes]:
    """Return which of the bytes are in the folder's files, or in a stored record before compression."""
    read = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    with StateDirectory.existing(folder, at_rest) as directory:
        for partition in directory.partitions():
            read.append(b"".join(key + stored for key, stored in partition.scan_stored(b"", keys.END)))
    return {one for one in said if any(contains(content, one) for content in read)}


LINES = make_log(seed=7, count=400)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, AtRest]]:
    """Return three directories with the same log, each with its encryption."""
    found = {}
    for name, at_rest in {"bare": UNENCRYPTED, "encrypted": ENCRYPTED, "plain vectors": PLAIN_VECTORS}.items():
        path = tmp_path_factory.mktemp("state") / "s"
        process(LINES, SETTINGS, path, at_rest=at_rest)
        found[name] = path, at_rest
    return found


def vectors_of(path: Path, at_rest: AtRest) -> list[bytes]:
    """Return the first floats of stored vectors."""
    with StateDirectory.existing(path, at_rest) as directory:
        records = [record for partition in directory.partitions() for record in partition.scan(keys.OWNERS)]
    stored = [Vectors.decode(value).whole for key, value in records if keys.split(key)[1] == keys.VECTORS]
    return [whole[np.flatnonzero(whole)[0] :][:8].tobytes() for whole in stored[:50]]


def test_encryption_changes_neither_state_nor_answers(directories: dict[str, tuple[Path, AtRest]]) -> None:
    hashes = {hash_of(*one) for one in directories.values()}
    assert len(hashes) == 1
    said = [process(final_questions()[:30], SETTINGS, path, at_rest=at).responses for path, at in directories.values()]
    assert comparable(said[0]) == comparable(said[1]) == comparable(said[2])
    assert [verify(*one).problems for one in directories.values()] == [[], [], []]


def test_encrypted_directory_shows_no_text_and_no_vectors(directories: dict[str, tuple[Path, AtRest]]) -> None:
    said = [word.encode(encoding) for word in SAID for encoding in ("utf-8", "utf-16-le", "utf-16-be")]
    path, at_rest = directories["encrypted"]
    vectors = vectors_of(path, at_rest)
    assert len(vectors) == 50
    assert found_in(path, at_rest, [*said, *vectors]) == set()
    # The search finds them where they are not encrypted.
    bare = directories["bare"]
    assert found_in(*bare, [word.encode() for word in SAID]) == {word.encode() for word in SAID}
    assert found_in(*bare, vectors) == set(vectors)
    assert found_in(*directories["plain vectors"], said) == set()
    assert found_in(*directories["plain vectors"], vectors) == set(vectors)


def test_checkpoint_of_an_encrypted_directory_needs_its_key(
    directories: dict[str, tuple[Path, AtRest]], tmp_path: Path
) -> None:
    path, at_rest = directories["encrypted"]
    checkpoint(path, tmp_path / "copy", at_rest)
    assert found_in(tmp_path / "copy", at_rest, [word.encode() for word in SAID]) == set()
    restore(tmp_path / "copy", tmp_path / "new", at_rest)
    assert hash_of(tmp_path / "new", at_rest) == hash_of(path, at_rest)
    for wrong in (UNENCRYPTED, AtRest(OTHER)):
        with pytest.raises(MasterKeyError):
            restore(tmp_path / "copy", tmp_path / "wrong", wrong)
    assert not (tmp_path / "wrong").exists()


def test_encryption_of_vectors_may_be_switched(tmp_path: Path, directories: dict[str, tuple[Path, AtRest]]) -> None:
    half = len(LINES) // 2
    process(LINES[:half], SETTINGS, tmp_path / "s", at_rest=PLAIN_VECTORS)
    process(LINES[half:], SETTINGS, tmp_path / "s", at_rest=ENCRYPTED)
    assert verify(tmp_path / "s", ENCRYPTED).problems == []
    assert hash_of(tmp_path / "s", PLAIN_VECTORS) == hash_of(*directories["encrypted"])


def test_unsealed_value_is_refused(tmp_path: Path) -> None:
    process(LINES[:100], Settings(partitions=1), tmp_path / "s", at_rest=ENCRYPTED)
    with StateDirectory.existing(tmp_path / "s", ENCRYPTED) as directory:
        partition = directory.partition(0)
        key, value = next(one for one in partition.scan(keys.OWNERS) if keys.split(one[0])[1] == keys.ROW)
        for forged in (value, b"\x00" + value, b"\x01" + value, b""):
            partition._db.put(key, forged)
            with pytest.raises(DecryptionFailed):
                partition.get(key)


def test_description_names_the_key_but_not_the_secret(directories: dict[str, tuple[Path, AtRest]]) -> None:
    description = orjson.loads((directories["encrypted"][0] / "recallflow.json").read_bytes())
    assert description["master_key"] == KEY.name
    assert "secret" not in description
    secret = KEY.unwrap(bytes.fromhex(description["wrapped_secret"]))
    assert found_in(*directories["encrypted"], [secret, secret.hex().encode()]) == set()


ANN, BO = Owner("acme", "prod", "ann"), Owner("acme", "prod", "bo")
ANNS_TESTS = Owner("acme", "test", "ann")
Opened = Callable[..., Partition]


def seal(partition: Partition, owner: bytes, label: bytes, value: bytes) -> bytes:
    return partition._owner_keys.ciphers[owner].seal(label, value)


def unseal(partition: Partition, owner: bytes, label: bytes, sealed: bytes) -> bytes:
    return partition._owner_keys.ciphers[owner].open(label, sealed)


def test_an_owners_key_is_made_once_and_found_again(opened: Opened) -> None:
    partition, ann = opened(KEYRING), KEYRING.owner(ANN)
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    sealed = seal(partition, ann, b"held", b"tea")
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    assert unseal(partition, ann, b"held", sealed) == b"tea"
    partition.commit()
    partition = opened(KEYRING)
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    assert unseal(partition, ann, b"held", sealed) == b"tea"


def test_sealed_value_opens_for_its_owner_and_label_only(opened: Opened) -> None:
    partition = opened(KEYRING)
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
    partition, ann = opened(KEYRING), KEYRING.owner(ANN)
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    partition.begin_owner(BO, KEYRING.owner(BO))
    sealed = seal(partition, ann, b"held", b"tea")
    bos = seal(partition, KEYRING.owner(BO), b"held", b"milk")
    partition.commit()
    partition.erase([ann], KEYRING.user("acme", "ann"), {}, None, NO_CHANGE)
    with pytest.raises(DecryptionFailed):
        unseal(partition, ann, b"held", sealed)
    partition.begin_owner(ANN, KEYRING.owner(ANN))  # she begins anew
    with pytest.raises(DecryptionFailed):
        unseal(partition, ann, b"held", sealed)
    partition.commit()
    partition = opened(KEYRING)
    with pytest.raises(DecryptionFailed):
        unseal(partition, ann, b"held", sealed)
    assert unseal(partition, KEYRING.owner(BO), b"held", bos) == b"milk"


def test_user_is_found_in_all_its_environments_alone(opened: Opened, at_rest: AtRest) -> None:
    partition = opened(Keyring(bytes(32), at_rest))
    for owner in (ANN, BO, ANNS_TESTS, Owner("other", "prod", "ann")):
        partition.begin_owner(owner, KEYRING.owner(owner))
    assert set(partition.owners_of("acme", "ann")) == {ANN, ANNS_TESTS}
    assert partition.owners_of("acme", "nobody") == []
    partition.erase([KEYRING.owner(ANN)], KEYRING.user("acme", "ann"), {}, None, NO_CHANGE)
    partition.commit()
    partition = opened(partition.keyring)
    assert partition.owners_of("acme", "ann") == [ANNS_TESTS]
    assert any(partition.scan(keys.OWNER_KEYS)) == partition.keyring.encrypts


@pytest.mark.parametrize("lost", [keys.OWNER_KEYS, keys.TENANT_KEYS])
def test_lost_key_opens_nothing_and_is_not_replaced(opened: Opened, lost: bytes) -> None:
    partition, ann = opened(KEYRING), KEYRING.owner(ANN)
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    sealed = seal(partition, ann, b"held", b"tea")
    partition.commit()
    ((key, value),) = partition.scan(lost)
    partition.stage({key: value[:-1] + bytes([value[-1] ^ 1])})
    partition.commit()
    partition = opened(KEYRING)
    for use in (
        lambda: partition.begin_owner(ANN, KEYRING.owner(ANN)),
        lambda: unseal(partition, ann, b"held", sealed),
    ):
        with pytest.raises(DecryptionFailed):
            use()


def test_keys_are_another_directorys_no_use(opened: Opened) -> None:
    partition = opened(KEYRING)
    partition.begin_owner(ANN, KEYRING.owner(ANN))
    partition.commit()
    stolen = dict(partition.scan(keys.OWNER_KEYS)) | dict(partition.scan(keys.TENANT_KEYS))
    assert KEYRING.owner(ANN) in {key[1:] for key in stolen}
    partition = opened(Keyring(bytes(31) + b"\x01"))
    with pytest.raises(DecryptionFailed):
        seal(partition, KEYRING.owner(ANN), b"held", b"tea")
