"""docs/importing.md tells of every format that is another program's, and of every reason to leave something out."""

import re
from pathlib import Path

import pytest

from recallflow.connectors.logs import building, chatgpt, claude, whatsapp
from recallflow.connectors.logs.registry import FORMATS

PAGE = (Path(__file__).parents[4] / "docs" / "importing.md").read_text()
OURS_OR_OPEN = {"events", "openai", "locomo"}
REASONS = [building.OTHER_FILE, building.EMPTY, building.OTHER_BRANCH, whatsapp.MEDIA, whatsapp.DELETED, whatsapp.OWN]


def test_each_format_has_a_row_and_a_section() -> None:
    rows = re.findall(r"^\| \[`(\w+)`\]\(#([\w-]+)\)", PAGE, re.MULTILINE)
    assert {name for name, _ in rows} == {one.name for one in FORMATS} - OURS_OR_OPEN
    sections = {title.lower().replace(" ", "-") for title in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)}
    assert {anchor for _, anchor in rows} <= sections


@pytest.mark.parametrize("module", [chatgpt, claude])
def test_each_reason_is_explained(module: object) -> None:
    source = Path(str(getattr(module, "__file__", ""))).read_text()
    own = re.findall(r'return "([a-z ]+)"$', source, re.MULTILINE) + re.findall(r'"\w+": "([a-z ]+)"[,}]', source)
    assert own
    assert [reason for reason in [*REASONS, *own] if f"`{reason}`" not in PAGE and reason != "user"] == []
