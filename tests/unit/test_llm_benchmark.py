"""What benchmarks/llm.py measures is what it says."""

from typing import Any

import orjson
import pytest

from benchmarks.live import Round, remembering, run
from benchmarks.llm_costs import EVERYTHING, batches, requests, spent
from benchmarks.model_server import EVERY, NEVER, serving
from recallflow.connectors.embedders import load_embedder
from recallflow.connectors.llm import Endpoint, load_language_model
from recallflow.flows.settings import Settings
from recallflow.operators.answers.models import Models, Within
from recallflow.operators.async_call import Completions, Runtime

MakeEvent = Any
SETTINGS = Settings(partitions=1)


def said(make_event: MakeEvent, session: str, number: int) -> bytes:
    told = {"role": "user", "session_id": session, "content": f"{number}: Ann moved to Leeds, as she likes rain"}
    return orjson.dumps(make_event("message", 1_000 * number, id=f"{session}{number}", tenant_id="locomo", **told))


@pytest.mark.parametrize(("size", "facts"), [(1, 4), (8, 2)])
def test_calls_and_tokens_are_counted_by_task(size: int, facts: int, make_event: MakeEvent) -> None:
    lines = [said(make_event, session, number) for number in range(2) for session in "ab"]
    asked = requests(lines, load_embedder("hash"), EVERYTHING)
    with serving({}) as service, Runtime(Completions()) as runtime:
        costs = runtime.run(spent(service.url, [*batches(asked, size)]))
    assert (costs["facts"].calls, costs["extract"].calls) == (facts, 4)
    assert costs["facts"].prompt_tokens > 100 * facts
    assert costs["all"].calls == sum(one.calls for task, one in costs.items() if task != "all")


def test_questions_that_hang_are_cut_off_in_the_end(make_event: MakeEvent) -> None:
    plain = make_event("recall", 9_000, tenant_id="locomo", query="Where does Ann live?")
    with remembering([said(make_event, "a", 1)], SETTINGS) as state_dir, serving({EVERY: NEVER}) as service:
        model = load_language_model("m", Endpoint(service.url))
        asked = Round([plain | {"rewrite": True}, plain], 1_000.0, over=service.stop)
        with Models(language=Within(model, 60.0)) as models:
            run(asked, state_dir, SETTINGS, load_embedder(SETTINGS.embedder), models)
            models.runtime.run(model.close())
    assert all(asked.latency_ms(number) > 0 for number in (0, 1))
    assert [[warning["code"] for warning in asked.answers[number]["warnings"]] for number in (0, 1)] == [
        ["llm_failed"],
        [],
    ]
