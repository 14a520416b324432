"""What benchmarks/llm.py measures is what it says."""

import orjson
import pytest

from benchmarks.llm_costs import EVERYTHING, batches, requests, spent
from benchmarks.model_server import serving
from recallflow.connectors.embedders import load_embedder
from recallflow.operators.async_call import Completions, Runtime
from tests.unit.operators.harness import make_event


def said(session: str, number: int) -> bytes:
    told = {"role": "user", "session_id": session, "content": f"{number}: Ann moved to Leeds, as she likes rain"}
    return orjson.dumps(make_event("message", 1_000 * number, id=f"{session}{number}", tenant_id="locomo", **told))


@pytest.mark.parametrize(("size", "facts"), [(1, 4), (8, 2)])
def test_calls_and_tokens_are_counted_by_task(size: int, facts: int) -> None:
    lines = [said(session, number) for number in range(2) for session in "ab"]
    asked = requests(lines, load_embedder("hash"), EVERYTHING)
    with serving({}) as service, Runtime(Completions()) as runtime:
        costs = runtime.run(spent(service.url, [*batches(asked, size)]))
    assert (costs["facts"].calls, costs["extract"].calls) == (facts, 4)
    assert costs["facts"].prompt_tokens > 100 * facts
    assert costs["all"].calls == sum(one.calls for task, one in costs.items() if task != "all")
