"""Twenty facts and questions in each language, end to end, with differing inflections."""

from collections import Counter
from pathlib import Path

import orjson
import pytest

from recallflow.flows.embedded import process
from recallflow.flows.settings import Settings

pytestmark = pytest.mark.slow

FILES = sorted(Path(__file__).with_name("facts").glob("*.txt"))
FOUND = 17  # of 20, as the first of three


def asked(file: Path) -> list[tuple[str, str]]:
    """Facts with their questions."""
    lines = file.read_text("utf-8").splitlines()
    return [(fact, question) for fact, question in (line.split(" | ") for line in lines)]


def missed(pairs: list[tuple[str, str]]) -> list[str]:
    who = {"tenant_id": "acme", "user_id": "ann", "timestamp": "2026-01-31T12:00:00Z"}
    facts = [who | {"type": "memory", "id": f"fact-{at}", "content": fact} for at, (fact, _) in enumerate(pairs)]
    questions = [
        who | {"type": "recall", "id": f"question-{at}", "query": question, "k": 3}
        for at, (_, question) in enumerate(pairs)
    ]
    responses = process(map(orjson.dumps, [*facts, *questions]), Settings(partitions=1)).responses
    first = {answer["query_id"]: answer["memories"][0]["id"] for answer in responses}
    return [question for at, (_, question) in enumerate(pairs) if first[f"question-{at}"] != f"fact-{at}"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_facts_are_found_in_each_language(file: Path) -> None:
    pairs = asked(file)
    assert len(pairs) == 20
    assert len(missed(pairs)) <= len(pairs) - FOUND, missed(pairs)


def test_one_owner_may_use_all_languages() -> None:
    assert len(FILES) == 13
    told = sorted(((at, file.stem, *pair) for file in FILES for at, pair in enumerate(asked(file))))
    who = {"tenant_id": "acme", "user_id": "ann", "timestamp": "2026-01-31T12:00:00Z"}
    facts = [who | {"type": "memory", "id": f"{code}-{at}", "content": fact} for at, code, fact, _ in told]
    questions = [
        who | {"type": "recall", "id": f"{code}-{at}", "query": question, "k": 3} for at, code, _, question in told
    ]
    found = Counter(
        answer["query_id"].partition("-")[0]
        for answer in process(map(orjson.dumps, [*facts, *questions]), Settings(partitions=1)).responses
        if answer["query_id"] in {memory["id"] for memory in answer["memories"]}
    )
    assert {file.stem: found[file.stem] for file in FILES if found[file.stem] < FOUND} == {}
