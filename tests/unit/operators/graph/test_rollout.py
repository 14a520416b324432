"""When expansion is applied to an answer, and how the answer reports it."""

from collections.abc import Callable
from typing import Any

import pytest

from recallflow.control import DEFAULT, ControlHistory, GateVerdict, Rollout
from recallflow.errors import StorageError
from recallflow.operators.events import Ask
from recallflow.operators.graph import quality_gate, rollout
from recallflow.operators.graph.paths import Expansion, RelatedMemory
from recallflow.operators.graph.quality_gate import REPEAT_MS, BaselineComparison, QualityGates
from recallflow.operators.graph.reader import Caps
from recallflow.operators.graph.rollout import AppliedExpansion, Expansions, Fallback
from recallflow.owner import Owner
from recallflow.queries import GraphStatus
from recallflow.records import Position, Record

TENANT, OTHER = "acme", "other"
ADDED = RelatedMemory(7, "m7", 0.25, {"reason": "graph_expansion"})
GOOD, BAD = BaselineComparison(0.0, {"caused_by": 0.1}, 30), BaselineComparison(0.0, {"caused_by": 0.1}, 30_000)


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WINDOW_MS", 1_000), ("OBSERVATIONS_MAX", 100), ("ANSWERS_MIN", 10), ("FEEDBACK_MIN", 3)):
        monkeypatch.setattr(quality_gate, name, value)


def rolled_out(
    mode: str, history: ControlHistory | None = None, at_ms: int = 0, tenant_id: str = TENANT
) -> ControlHistory:
    decisions = history or ControlHistory()
    decisions.add(at_ms, Rollout(type="graph.rollout", tenant_id=tenant_id, name="default", mode=mode))  # type: ignore[arg-type]
    return decisions


def decided(history: ControlHistory, blocked: bool, at_ms: int, name: str = DEFAULT) -> None:
    history.add(at_ms, GateVerdict(type="gate.verdict", tenant_id=TENANT, name=name, blocked=blocked, by="ops"))


def expansions_of(history: ControlHistory, gates: QualityGates | None = None, *, enabled: bool = True) -> Expansions:
    return Expansions(history, gates or QualityGates(), enabled=enabled)


def request(at_ms: int = 0, tenant_id: str = TENANT, user_id: str = "ann") -> Ask:
    query = GraphStatus(type="graph.status", environment="prod", tenant_id=tenant_id, user_id=user_id, id=f"q{at_ms}")
    return Ask(Record(Position("q", 0, at_ms), b"", at_ms), query, Owner(tenant_id, "prod", user_id))


def found(caps: Caps | None = None) -> Callable[[], Expansion]:
    return lambda: Expansion((ADDED,), 3, caps or Caps())


def fails() -> Expansion:
    raise KeyError("what a memory says")


def run(
    expansions: Expansions, at_ms: int = 0, *, expand: Callable[[], Expansion] | None = None,
    compared: BaselineComparison = GOOD, no_time: bool = False, is_late: bool = False, tenant_id: str = TENANT,
) -> AppliedExpansion:  # fmt: skip
    work = expand or found()
    return expansions.run(request(at_ms, tenant_id), lambda: (work(), compared), no_time, lambda: is_late)


@pytest.mark.parametrize(
    ("expansions", "fallback"),
    [
        (expansions_of(rolled_out("canary"), enabled=False), "feature_flag_disabled"),
        (expansions_of(ControlHistory()), "rollout_off"), (expansions_of(rolled_out("off")), "rollout_off"),
        (expansions_of(rolled_out("canary", tenant_id=OTHER)), "rollout_off"),
        (expansions_of(rolled_out("shadow")), "shadow_mode"),
    ],
)  # fmt: skip
def test_expansion_without_rollout_is_not_applied(expansions: Expansions, fallback: Fallback) -> None:
    assert run(expansions) == AppliedExpansion((), fallback)


def test_the_mode_is_that_of_the_querys_append_time() -> None:
    expansions = expansions_of(rolled_out("off", rolled_out("canary", at_ms=100), at_ms=200))
    assert [run(expansions, at_ms).fallback for at_ms in (99, 100, 199, 200)] == [
        "rollout_off", None, None, "rollout_off",
    ]  # fmt: skip


def test_a_failed_expansion_falls_back_with_a_warning() -> None:
    expansions = expansions_of(rolled_out("canary"))
    applied = run(expansions, 5, expand=fails)
    assert (applied.items, applied.fallback) == ((), "graph_expansion_error")
    assert [warning.code for warning in applied.warnings] == ["graph_expansion_error"]
    (failure,) = expansions.observations(TENANT).failures
    assert (failure.at_ms, failure.query_id) == (5, "q5")
    assert "KeyError" in failure.error
    assert "what a memory says" not in failure.error


def test_only_the_last_failures_are_kept() -> None:
    expansions = expansions_of(rolled_out("canary"))
    for at_ms in range(20):
        run(expansions, at_ms, expand=fails)
    assert [failure.at_ms for failure in expansions.observations(TENANT).failures] == [*range(10, 20)]


def test_a_storage_error_is_no_fallback() -> None:
    def unreadable() -> Expansion:
        raise StorageError("disk")

    with pytest.raises(StorageError):
        run(expansions_of(rolled_out("shadow")), expand=unreadable)


def test_a_query_out_of_time_goes_without() -> None:
    expansions = expansions_of(rolled_out("canary"))
    assert run(expansions, expand=fails, no_time=True) == AppliedExpansion((), "rollout_guardrail")


def play(
    expansions: Expansions, history: ControlHistory, times: range, compared: BaselineComparison
) -> list[tuple[int, bool]]:
    """Ask at each time, and apply verdicts at once. Return times and contents of the verdicts."""
    said = []
    for at_ms in times:
        run(expansions, at_ms, compared=compared)
        if (verdict := expansions.verdict(TENANT)) is not None:
            history.add(at_ms, verdict)
            said.append((at_ms, verdict.blocked))
    return said


def test_a_planted_regression_blocks_and_recovery_frees() -> None:
    history = rolled_out("canary")
    expansions = expansions_of(history)
    assert play(expansions, history, range(20), GOOD) == []
    assert play(expansions, history, range(20, 120), BAD) == [(21, True)]
    assert run(expansions, 120, compared=BAD) == AppliedExpansion((), "quality_gate_blocked")
    # Blocked, it is measured all the same: that is how it comes back.
    ((freed_at_ms, blocked),) = play(expansions, history, range(121, 400), GOOD)
    assert not blocked
    assert run(expansions, freed_at_ms).fallback is None


def test_verdict_names_author_reason_and_figures() -> None:
    expansions = expansions_of(rolled_out("canary"))
    for _ in range(10):
        run(expansions, 50, compared=BAD)
    verdict = expansions.verdict(TENANT)
    assert verdict is not None
    assert (verdict.tenant_id, verdict.name, verdict.blocked, verdict.timestamp) == (TENANT, "default", True, 50)
    assert (verdict.by, verdict.why) == ("quality gate", "added_words 30000")
    assert verdict.windows["answers"] == 10


def test_pending_verdict_is_not_repeated_early() -> None:
    expansions = expansions_of(rolled_out("canary"))
    said = []
    for at_ms in [*range(10), REPEAT_MS + 8, *(REPEAT_MS + 9 for _ in range(10))]:
        run(expansions, at_ms, compared=BAD)
        if expansions.verdict(TENANT) is not None:
            said.append(at_ms)
    assert said == [9, REPEAT_MS + 9]


def test_graph_answer_past_its_deadline_counts_as_without_time() -> None:
    expansions = expansions_of(rolled_out("canary"))
    for _ in range(10):
        assert run(expansions, is_late=True).items == (ADDED,)
    assert expansions.observations(TENANT).figures["fallback_rate"] == 1


def test_lagging_partitions_judge_by_current_decisions() -> None:
    history, gates = rolled_out("canary"), QualityGates()
    ahead, behind = expansions_of(history, gates), expansions_of(history, gates)
    assert play(ahead, history, range(500, 520), BAD) == [(509, True)]
    assert play(behind, history, range(400, 420), BAD) == []


def test_after_a_start_the_verdict_holds_until_enough_was_seen() -> None:
    history = rolled_out("canary")
    play(expansions_of(history), history, range(10), BAD)
    started = expansions_of(history)
    assert play(started, history, range(10, 19), GOOD) == []
    assert run(started, 18).fallback == "quality_gate_blocked"
    assert play(started, history, range(19, 30), GOOD) == [(19, False)]


def test_freed_edge_type_is_judged_by_later_answers() -> None:
    history = rolled_out("canary")
    expansions = expansions_of(history)
    play(expansions, history, range(10), BAD)
    decided(history, False, 20)
    assert play(expansions, history, range(20, 29), BAD) == []
    assert run(expansions, 29).fallback is None
    assert play(expansions, history, range(30, 40), BAD) == [(30, True)]


def test_block_by_an_operator_is_freed_by_an_operator() -> None:
    history = rolled_out("canary")
    expansions = expansions_of(history)
    decided(history, True, 0)
    assert play(expansions, history, range(100), GOOD) == []
    assert run(expansions, 100).fallback == "quality_gate_blocked"
    decided(history, False, 101)
    assert run(expansions, 101).fallback is None


def heard(expansions: Expansions) -> dict[str, Any]:
    figures = expansions.observations(TENANT).figures
    return {name: figures[name] for name in ("feedback", "useful_added", "useful_with", "useful_without")}


def test_feedback_counts_once_for_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality_gate, "FEEDBACK_MIN", 1)
    expansions = Expansions(rolled_out("canary"), QualityGates())
    owner = request().owner
    expansions.answered(request(), ["m1", "m7"], [])
    expansions.answered(request(), ["m2", "m3"], ["m7"])
    for memory_id, useful in (("m7", False), ("m7", False), ("m2", True), ("m1", False), ("m9", False)):
        expansions.feedback(owner, memory_id, useful, 1)
    expansions.feedback(request(user_id="bob").owner, "m3", False, 1)  # another's
    assert heard(expansions) == {"feedback": 3, "useful_added": 0, "useful_with": 0.5, "useful_without": 0}


def test_baseline_answers_are_the_measure_of_expanded_ones() -> None:
    history = rolled_out("canary")
    expansions = expansions_of(history)
    for at_ms in range(10):
        run(expansions, at_ms)
        expansions.answered(request(at_ms), ["m1"], ["m7"])
        expansions.feedback(request().owner, "m7", at_ms % 2 == 0, at_ms)
        expansions.answered(request(at_ms), ["m1"], [])
        expansions.feedback(request().owner, "m1", True, at_ms)
    verdict = expansions.verdict(TENANT)
    assert verdict is not None
    assert verdict.why == "useful_loss 0.5"


def test_feedback_is_waited_for_on_so_many_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "FEEDBACK_MAX", 3)
    expansions = expansions_of(rolled_out("canary"))
    expansions.answered(request(), ["m1", "m2"], [])
    expansions.answered(request(), ["m3", "m1", "m4"], [])
    for memory_id in ("m1", "m2", "m3", "m4"):
        expansions.feedback(request().owner, memory_id, True, 1)
    assert heard(expansions)["feedback"] == 3
