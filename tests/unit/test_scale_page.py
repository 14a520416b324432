"""The tables of the page on scaling are those of the benchmarks' last run."""

import re

import pytest

from benchmarks.scale import page


def test_the_page_has_every_table_as_it_was_measured() -> None:
    text = page.PAGE.read_text()
    assert sorted(re.findall(r"<!-- (\w+) -->", text)) == sorted([*page.TABLES, *["end"] * len(page.TABLES)])
    assert page.page(text) == text


@pytest.mark.parametrize("name", page.TABLES)
def test_a_table_has_a_cell_for_each_of_its_heads(name: str) -> None:
    head, _, *rows = page.TABLES[name]().strip().splitlines()
    assert rows
    assert {row.count("|") for row in rows if row} == {head.count("|")} or name == "cost"
