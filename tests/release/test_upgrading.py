"""docs/how-to/upgrading.md names the versions that the code writes."""

import re

import recallflow
from recallflow.language.analysis import ANALYSIS
from recallflow.state.keys import FORMAT_VERSION
from tests.release.conftest import ROOT

PAGE = (ROOT / "docs" / "how-to" / "upgrading.md").read_text()


def test_newest_row_of_the_version_table_is_this_version() -> None:
    rows = re.findall(r"^\| (\d+\.\d+\.\d+) \| (\d+) \| (\S+) \|", PAGE, re.MULTILINE)
    assert rows[0] == (recallflow.__version__, str(FORMAT_VERSION), ANALYSIS)


def test_every_format_there_was_is_named() -> None:
    (formats,) = re.findall(r"^Formats before the first release.*?: (.*?)\.\n\n", PAGE, re.MULTILINE | re.DOTALL)
    numbers = [int(number) for number in re.findall(r"(?:^|; )(\d+)\s", " ".join(formats.split()))]
    assert numbers == list(range(1, FORMAT_VERSION + 1))


def test_every_check_that_it_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert len(named) > 4
    assert [path for path in named if not (ROOT / path).exists()] == []
