"""An encrypted state directory behaves like any other with its key, and shows nothing without it."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from recallflow.connectors.master_keys import LocalMasterKey
from recallflow.errors import MasterKeyError
from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.state import keys
from recallflow.state.checkpoint import checkpoint, restore
from recallflow.state.directory import StateDirectory
from recallflow.state.encryption import UNENCRYPTED, AtRest
from recallflow.state.rows import Vectors
from recallflow.state.verify import verify
from tests.event_log import CACHE_BYTES, comparable, final_questions, hash_of, make_log
from tests.readable import contains

KEY, OTHER = (LocalMasterKey(bytes([number] * 32)) for number in (1, 2))
ENCRYPTED = AtRest(KEY)
PLAIN_VECTORS = AtRest(KEY, encrypt_vectors=False)
SETTINGS = Settings(partitions=2)
# What the log's owners say, are called, name and are found by: texts, ids, names, stems.
SAID = ["walnut", "anchor stays", "harbour", "Lake Como", "Cleo Marsh", "globex", "drifter", "zoë/🦦", "bicycl"]


def found_in(folder: Path, at_rest: AtRest, said: list[bytes]) -> set[bytes]:
    """Return which of the bytes are in the folder's files, or in a stored record before compression."""
    read = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    with StateDirectory.existing(folder, CACHE_BYTES, at_rest) as directory:
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
    with StateDirectory.existing(path, CACHE_BYTES, at_rest) as directory:
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
    with StateDirectory.existing(tmp_path / "s", CACHE_BYTES, ENCRYPTED) as directory:
        partition = directory.partition(0)
        key, value = next(one for one in partition.scan(keys.OWNERS) if keys.split(one[0])[1] == keys.ROW)
        for forged in (value, b"\x00" + value, b"\x01" + value, b""):
            partition._db.put(key, forged)
            with pytest.raises(Exception, match="sealed"):
                partition.get(key)


def test_description_names_the_key_but_not_the_secret(directories: dict[str, tuple[Path, AtRest]]) -> None:
    description = orjson.loads((directories["encrypted"][0] / "recallflow.json").read_bytes())
    assert description["master_key"] == KEY.name
    assert "secret" not in description
    secret = KEY.unwrap(bytes.fromhex(description["wrapped_secret"]))
    assert found_in(*directories["encrypted"], [secret, secret.hex().encode()]) == set()
