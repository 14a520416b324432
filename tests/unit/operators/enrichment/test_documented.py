"""The page of events tells what the enrichment flow may not find out, in the words of the code."""

import re
from pathlib import Path

from recallflow.operators.enrichment.claims import REFUSALS
from recallflow.operators.enrichment.failures import LACKS

PAGE = (Path(__file__).parents[4] / "docs" / "events.md").read_text()
SECTION = PAGE.partition("### What the enrichment flow does not find out\n")[2].partition("\n## ")[0]


def test_every_code_of_a_failed_task_is_in_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `([A-Z_]+)` \| (.+) \|$", SECTION, re.MULTILINE)
    assert rows == [(task, lack.code, lack.text) for task, lack in LACKS.items()]


def test_every_reason_to_refuse_a_claim_is_in_the_page() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| ([^|`]+) \|$", SECTION, re.MULTILINE)
    assert rows == [*REFUSALS.items()]
