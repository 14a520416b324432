"""When what the graph adds is in an answer, and what the answer says where it is not."""

from collections.abc import Callable

import pytest

from recallflow.control import GateVerdict, Rollout
from recallflow.decisions import History
from recallflow.errors import StorageError
from recallflow.operators.events import Request
from recallflow.operators.graph.expand import Expansion, Related
from recallflow.operators.graph.gate import Compared, Window
from recallflow.operators.graph.reader import Caps
from recallflow.operators.graph.rollout import REPEAT_MS, Applied, Expansions, Fallback
from recallflow.owner import Owner
from recallflow.records import Position

TENANT, OTHER = "acme", "other"
ADDED = Related(7, "m7", 0.25, {"reason": "graph_expansion"})
GOOD, BAD = Compared(0.0, 0.9, 0.8), Compared(0.0, 0.9, 0.1)
WINDOW = Window(span_ms=1_000, most=100, answers=10, feedback=3)


def rolled_out(mode: str, history: History | None = None, at_ms: int = 0, tenant_id: str = TENANT) -> History:
    decisions = history or History()
    decisions.add(at_ms, Rollout(type="graph.rollout", tenant_id=tenant_id, name="default", mode=mode))  # type: ignore[arg-type]
    return decisions


def blocking(history: History, name: str, blocked: bool, at_ms: int) -> None:
    history.add(at_ms, GateVerdict(type="gate.verdict", tenant_id=TENANT, name=name, blocked=blocked))


def request(at_ms: int = 0, tenant_id: str = TENANT, user_id: str = "ann") -> Request:
    return Request(Owner(tenant_id, "prod", user_id), Position("q", 0, at_ms), f"q{at_ms}", at_ms)


def found(caps: Caps | None = None) -> Callable[[], Expansion]:
    return lambda: Expansion((ADDED,), 3, caps or Caps())


def fails() -> Expansion:
    raise KeyError("what a memory says")


def run(
    expansions: Expansions,
    at_ms: int = 0,
    *,
    expand: Callable[[], Expansion] | None = None,
    compared: Compared = GOOD,
    late: bool = False,
    tenant_id: str = TENANT,
) -> Applied:
    work = expand or found()
    return expansions.run(request(at_ms, tenant_id), lambda: (work(), compared), late)


# ── modes and reasons ─────────────────────────────────────────────────────────────────────────────────────────────


def test_canary_applies() -> None:
    applied = run(Expansions(rolled_out("canary"), 0))
    assert applied == Applied((ADDED,), None, (), {"reached": 3, "caps": {}})


def test_a_bound_that_was_met_is_told() -> None:
    applied = run(Expansions(rolled_out("canary"), 0), expand=found(Caps(["topic:tea"], ["type:fact"], 2)))
    assert applied.routing == {"reached": 3, "caps": {"fan_out": 1, "common": 1, "visited_at_hop": 2}}


@pytest.mark.parametrize(
    ("expansions", "fallback"),
    [
        (Expansions(rolled_out("canary"), 0, enabled=False), "feature_flag_disabled"),
        (Expansions(History(), 0), "rollout_off"),
        (Expansions(rolled_out("off"), 0), "rollout_off"),
        (Expansions(rolled_out("canary", tenant_id=OTHER), 0), "rollout_off"),
        (Expansions(rolled_out("shadow"), 0), "shadow_mode"),
    ],
)
def test_what_is_not_rolled_out_is_not_applied(expansions: Expansions, fallback: Fallback) -> None:
    assert run(expansions) == Applied((), fallback)


@pytest.mark.parametrize("mode", ["off", "feature"])
def test_nothing_is_expanded_where_nothing_is_rolled_out(mode: str) -> None:
    decisions = History() if mode == "off" else rolled_out("canary")
    expansions = Expansions(decisions, 0, enabled=mode == "off")
    run(expansions, expand=fails)
    assert expansions.watched(TENANT).gate.figures()["answers"] == 0


def test_the_mode_is_that_of_the_querys_append_time() -> None:
    expansions = Expansions(rolled_out("off", rolled_out("canary", at_ms=100), at_ms=200), 0)
    assert [run(expansions, at_ms).fallback for at_ms in (99, 100, 199, 200)] == [
        "rollout_off",
        None,
        None,
        "rollout_off",
    ]


def test_a_failed_expansion_falls_back_with_a_warning() -> None:
    expansions = Expansions(rolled_out("canary"), 0)
    applied = run(expansions, 5, expand=fails)
    assert (applied.items, applied.fallback) == ((), "graph_expansion_error")
    assert [warning.code for warning in applied.warnings] == ["graph_expansion_error"]
    (failure,) = expansions.watched(TENANT).failures
    assert (failure.at_ms, failure.query_id) == (5, "q5")
    assert failure.error.startswith("KeyError")
    assert "what a memory says" not in failure.error


def test_only_the_last_failures_are_kept() -> None:
    expansions = Expansions(rolled_out("canary"), 0)
    for at_ms in range(20):
        run(expansions, at_ms, expand=fails)
    assert [failure.at_ms for failure in expansions.watched(TENANT).failures] == [*range(10, 20)]


def test_a_storage_error_is_no_fallback() -> None:
    def unreadable() -> Expansion:
        raise StorageError("disk")

    with pytest.raises(StorageError):
        run(Expansions(rolled_out("shadow"), 0), expand=unreadable)


def test_a_query_out_of_time_goes_without() -> None:
    expansions = Expansions(rolled_out("canary"), 0)
    assert run(expansions, expand=fails, late=True) == Applied((), "rollout_guardrail")


def test_shadow_says_the_same_whatever_happens() -> None:
    expansions = Expansions(rolled_out("shadow"), 0)
    assert run(expansions) == Applied((), "shadow_mode")
    assert run(expansions, expand=fails) == Applied((), "shadow_mode")
    assert run(expansions, late=True) == Applied((), "shadow_mode")


# ── the gate ──────────────────────────────────────────────────────────────────────────────────────────────────────


def play(expansions: Expansions, history: History, times: range, compared: Compared) -> list[tuple[int, bool]]:
    """Asks at each time; verdicts come back through the history at once. When they came, and what they said."""
    said = []
    for at_ms in times:
        run(expansions, at_ms, compared=compared)
        if (verdict := expansions.verdict(TENANT, at_ms)) is not None:
            history.add(at_ms, verdict)
            said.append((at_ms, verdict.blocked))
    return said


def test_a_planted_regression_blocks_and_recovery_frees() -> None:
    history = rolled_out("canary")
    expansions = Expansions(history, 3, window=WINDOW)
    assert play(expansions, history, range(20), GOOD) == []
    assert play(expansions, history, range(20, 120), BAD) == [(102, True)]
    assert run(expansions, 120, compared=BAD) == Applied((), "quality_gate_blocked")
    assert expansions.blocked_by(TENANT, 120) == ["3"]
    # Blocked, it is measured all the same: that is how it comes back.
    ((freed_at_ms, blocked),) = play(expansions, history, range(121, 400), GOOD)
    assert not blocked
    assert run(expansions, freed_at_ms).fallback is None


def test_a_verdict_says_who_why_and_by_which_figures() -> None:
    expansions = Expansions(rolled_out("canary"), 3, window=WINDOW)
    for _ in range(10):
        run(expansions, 50, compared=BAD)
    verdict = expansions.verdict(TENANT, 50)
    assert verdict is not None
    assert (verdict.tenant_id, verdict.name, verdict.blocked, verdict.timestamp) == (TENANT, "3", True, 50)
    assert (verdict.by, verdict.why) == ("quality gate", "relevance_loss 0.89")
    assert verdict.windows["answers"] == 10


def test_a_verdict_on_its_way_is_not_said_again_before_its_time() -> None:
    expansions = Expansions(rolled_out("canary"), 0, window=WINDOW)
    for _ in range(10):
        run(expansions, compared=BAD)
    assert expansions.verdict(TENANT, 0) is not None
    assert expansions.verdict(TENANT, REPEAT_MS - 1) is None
    assert expansions.verdict(TENANT, REPEAT_MS) is not None


def test_any_partitions_gate_blocks_and_only_itself_frees() -> None:
    history = rolled_out("canary")
    here, there = Expansions(history, 0, window=WINDOW), Expansions(history, 1, window=WINDOW)
    play(here, history, range(10), BAD)
    assert play(there, history, range(10, 100), GOOD) == []
    assert run(there, 100).fallback == "quality_gate_blocked"
    play(here, history, range(100, 200), GOOD)
    assert run(there, 200).fallback is None


def test_after_a_start_the_verdict_holds_until_enough_was_seen() -> None:
    history = rolled_out("canary")
    play(Expansions(history, 0, window=WINDOW), history, range(10), BAD)
    started = Expansions(history, 0, window=WINDOW)
    assert play(started, history, range(10, 19), GOOD) == []
    assert run(started, 18).fallback == "quality_gate_blocked"
    assert play(started, history, range(19, 30), GOOD) == [(19, False)]


def test_an_operator_can_free_what_a_gate_blocks() -> None:
    history = rolled_out("canary")
    expansions = Expansions(history, 0, window=WINDOW)
    play(expansions, history, range(10), BAD)
    blocking(history, "0", False, 20)
    assert run(expansions, 20).fallback is None


def test_tenants_do_not_share_a_gate() -> None:
    history = rolled_out("canary", rolled_out("canary", tenant_id=OTHER))
    expansions = Expansions(history, 0, window=WINDOW)
    play(expansions, history, range(10), BAD)
    assert run(expansions, 20, tenant_id=OTHER).fallback is None
    assert expansions.verdict(OTHER, 20) is None


# ── feedback ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_feedback_on_added_memories_counts_once() -> None:
    expansions = Expansions(rolled_out("canary"), 0, window=WINDOW)
    owner = request().owner
    run(expansions)
    expansions.feedback(owner, "m7", False, 1)
    expansions.feedback(owner, "m7", False, 1)  # once for one answer
    expansions.feedback(owner, "m1", False, 1)  # ranked, not added
    expansions.feedback(request(user_id="bob").owner, "m7", False, 1)  # another's
    assert expansions.watched(TENANT).gate.figures()["feedback"] == 1


def test_bad_feedback_blocks() -> None:
    history = rolled_out("canary")
    expansions = Expansions(history, 0, window=WINDOW)
    for at_ms in range(10):
        run(expansions, at_ms)
        expansions.feedback(request().owner, "m7", False, at_ms)
    verdict = expansions.verdict(TENANT, 10)
    assert verdict is not None
    assert verdict.why == "not_useful_rate 1.00"


def test_what_was_only_measured_gets_no_feedback() -> None:
    expansions = Expansions(rolled_out("shadow"), 0, window=WINDOW)
    run(expansions)
    expansions.feedback(request().owner, "m7", False, 1)
    assert expansions.watched(TENANT).gate.figures()["feedback"] == 0
