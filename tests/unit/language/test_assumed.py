"""A text of unclear language is read in the language of the owner's last clear text."""

from pathlib import Path

import orjson
import pytest

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings
from recallflow.language import LATIN
from recallflow.state import keys
from recallflow.state.directory import StateDirectory
from recallflow.state.rows import Entry, language_in

GERMAN, ENGLISH = "Ich gehe heute nicht zur Schule.", "I am not going to school today."
UNCLEAR = "Schwimmbaeder geschlossen"
SETTINGS = Settings(partitions=1)


def write(path: Path, *events: dict[str, str]) -> None:
    who = {"tenant_id": "acme", "user_id": "ann", "timestamp": "2026-01-31T12:00:00Z"}
    assert not process([orjson.dumps(who | event) for event in events], SETTINGS, path).rejected


def message(name: str, content: str) -> dict[str, str]:
    return {"type": "message", "id": name, "role": "user", "content": content}


def entries(path: Path) -> dict[str, tuple[str, str]]:
    """Id → the language that a memory was read in, and its stems."""
    with StateDirectory.existing(path, 1024 * 1024) as directory:
        (partition,) = directory.partitions()
        found = [Entry.decode(value) for key, value in partition.scan(keys.OWNERS) if keys.split(key)[1] == keys.ENTRY]
    return {entry.id: (LATIN[language_in(entry.flags)].code, entry.stems) for entry in found}


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([], ("en", "schwimmbaed geschlossen")), ([GERMAN], ("de", "schwimmbad geschloss")),
        ([GERMAN, ENGLISH], ("en", "schwimmbaed geschlossen")), ([ENGLISH, GERMAN], ("de", "schwimmbad geschloss")),
    ],
)  # fmt: skip
def test_the_last_text_that_told_its_language_counts(
    tmp_path: Path, before: list[str], expected: tuple[str, str]
) -> None:
    write(tmp_path / "s", *(message(f"b{at}", text) for at, text in enumerate(before)), message("last", UNCLEAR))
    assert entries(tmp_path / "s")["last"] == expected


def test_assumed_language_survives_a_restart_and_a_new_version(tmp_path: Path) -> None:
    write(tmp_path / "s", message("first", GERMAN))
    write(tmp_path / "s", message("second", "Rex"))
    write(tmp_path / "s", {"type": "memory.update", "memory_id": "second", "content": UNCLEAR})
    assert entries(tmp_path / "s")["second"] == ("de", "schwimmbad geschloss")
