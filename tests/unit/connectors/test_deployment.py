"""When an engine may send: with a clock that is set by hand, and a group that is asked nothing over a network."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from recallflow.connectors.kafka.deployment import Deployment, outage_s
from recallflow.connectors.kafka.group import Fenced, Group, Member, Seen
from recallflow.connectors.kafka.holder import Holder, directory_id
from recallflow.connectors.kafka.patience import Patience
from recallflow.errors import DeploymentHeld, DeploymentLost, SinkError
from recallflow.flows.config import RunSettings
from tests.unit.connectors.clock import Clock

SESSION_S = 45.0


class FakeGroup(Group):
    """Accepts what its last member says."""

    name = "d"

    def __init__(self) -> None:
        self.there: str | None = None
        self.member: FakeMember | None = None
        self.joins = 0
        self.away = False
        self.before_join: Callable[[], None] = lambda: None

    def look(self) -> Seen:
        return Seen(self.there, None if self.member is None else self.member.name)

    def join(self) -> Member:
        self.before_join()
        self.joins += 1
        self.member = FakeMember(self, f"engine-{self.joins}")
        return self.member

    def another(self, tmp_path: Path, **fields: Any) -> Holder:
        """Another engine joins, and says so."""
        tmp_path.mkdir(exist_ok=True)
        holder = replace(Holder.here(tmp_path), **fields)
        self.join().commit(holder.encode())
        return holder


class FakeMember(Member):
    def __init__(self, group: FakeGroup, name: str) -> None:
        self.name: str | None = name
        self.lost = False
        self._group = group
        self._accepted: bool | None = None

    def note(self) -> str | None:
        if self._group.away:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return self._group.there

    def commit(self, note: str) -> None:
        if self._group.member is self and not self._group.away:
            self._group.there, self._accepted = note, True

    def committed(self, wait_s: float) -> bool | None:  # noqa: ARG002
        if self._group.member is not self and not self._group.away:
            raise Fenced
        accepted, self._accepted = self._accepted, None
        return accepted

    def close(self) -> None:
        pass


@pytest.fixture
def group() -> FakeGroup:
    return FakeGroup()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def deployment(group: FakeGroup, clock: Clock, tmp_path: Path) -> Deployment:
    (tmp_path / "ours").mkdir()
    return Deployment(group, tmp_path / "ours", SESSION_S, clock_s=clock)


MakePatience = Callable[[], Patience]


@pytest.fixture
def patience(clock: Clock) -> MakePatience:
    return lambda: Patience(outage_s(SESSION_S), threading.Event(), clock)


def started(deployment: Deployment) -> Deployment:
    deployment.await_turn()
    deployment.enter()
    deployment.step()
    return deployment


def test_an_output_expires_before_the_session_does() -> None:
    assert (outage_s(45.0), outage_s(6.0), outage_s(180.0)) == (40.0, 4.0, 160.0)
    elects_within_s = 9.0  # broker.session.timeout.ms: Kafka replaces a broker that died
    assert outage_s(RunSettings().session_timeout_s) > elects_within_s


def test_something_is_sent_only_if_it_expires_before_the_session_does(
    deployment: Deployment, clock: Clock, patience: MakePatience
) -> None:
    started(deployment).check(patience)
    clock.now_s += SESSION_S - deployment.outage_s - 0.1
    deployment.check(patience)
    assert deployment.held


def test_what_cannot_be_sent_for_an_outage_ends_the_flow(
    deployment: Deployment, clock: Clock, patience: MakePatience, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(deployment)
    group.away = True
    clock.now_s += 10
    deployment.step()
    waited: list[float] = []

    def wait(_: float) -> None:
        waited.append(clock.now_s)
        clock.now_s += 1

    monkeypatch.setattr("time.sleep", wait)
    with pytest.raises(SinkError, match="deployment d could not be renewed within 40 s"):
        deployment.check(patience)
    assert len(waited) == 40
    assert not deployment.held


def test_a_renewal_lets_it_send_again(
    deployment: Deployment, clock: Clock, patience: MakePatience, group: FakeGroup
) -> None:
    started(deployment)
    group.away = True
    clock.now_s += 2 * SESSION_S
    deployment.step()
    assert (deployment.held, deployment.seconds_left()) == (False, 0)
    group.away = False
    clock.now_s += 1
    deployment.step()
    deployment.check(patience)
    assert deployment.seconds_left() == SESSION_S


def test_who_is_put_out_is_told(deployment: Deployment, group: FakeGroup, tmp_path: Path) -> None:
    started(deployment)
    group.another(tmp_path / "other")
    with pytest.raises(Fenced):
        deployment.step()


def test_who_lost_its_place_joins_again_if_nobody_came(
    deployment: Deployment, clock: Clock, patience: MakePatience, group: FakeGroup
) -> None:
    started(deployment)
    assert group.member is not None
    group.member.lost, group.member = True, None
    clock.now_s += 2 * SESSION_S
    deployment.step()
    deployment.step()
    deployment.check(patience)
    assert group.joins == 2


@pytest.mark.parametrize("still_there", [True, False])
def test_who_lost_its_place_leaves_it_to_whoever_came(
    deployment: Deployment, clock: Clock, group: FakeGroup, tmp_path: Path, still_there: bool
) -> None:
    started(deployment)
    assert group.member is not None
    group.member.lost = True
    group.another(tmp_path / "other", released=not still_there)
    if not still_there:
        group.member = None
    clock.now_s += 100
    with pytest.raises(DeploymentLost, match=r"took over deployment d: .*other on .* this one was cut off for 100 s"):
        deployment.step()
    assert group.joins == 2


def test_who_lost_its_place_waits_for_a_word_of_whoever_just_came(deployment: Deployment, group: FakeGroup) -> None:
    started(deployment)
    assert group.member is not None
    group.member.lost = True
    group.join()
    deployment.step()
    assert group.joins == 2


def test_of_two_that_start_at_once_the_last_waits_for_the_others_session(
    deployment: Deployment, clock: Clock, group: FakeGroup, tmp_path: Path
) -> None:
    deployment.await_turn()

    def first() -> None:
        group.before_join = lambda: None
        group.another(tmp_path / "other")

    group.before_join = first
    deployment.enter()
    for _ in range(44):
        deployment.step()
        clock.now_s += 1
    assert not deployment.held
    clock.now_s += 1
    deployment.step()
    assert deployment.held


def test_ones_own_directory_is_not_waited_for(deployment: Deployment, group: FakeGroup, tmp_path: Path) -> None:
    """Its process renewed a last time after we looked, and is gone: the directory's lock is ours."""
    group.before_join = lambda: None
    deployment.await_turn()
    group.another(tmp_path / "ours", renewals=7)
    deployment.enter()
    deployment.step()
    assert deployment.held


@pytest.mark.parametrize(
    ("folder", "fields", "gone"),
    [("ours", {}, False), ("other", {"released": True}, False), ("other", {}, True)],
    ids=["our own directory", "released", "no member"],
)
def test_who_is_through_is_in_nobodys_way(
    deployment: Deployment, group: FakeGroup, tmp_path: Path, folder: str, fields: dict[str, Any], gone: bool
) -> None:
    group.another(tmp_path / folder, **fields)
    if gone:
        group.member = None
    assert started(deployment).held


def test_who_is_there_is_named(deployment: Deployment, group: FakeGroup, tmp_path: Path) -> None:
    holder = group.another(tmp_path / "other")
    with pytest.raises(DeploymentHeld) as refused:
        deployment.await_turn()
    assert f"deployment d is held by {tmp_path / 'other'} on {holder.host} (process {holder.pid})" in str(refused.value)


@pytest.fixture
def waits(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Each wait takes a second; what is in the list happens in it."""
    happens: list[Callable[[], object]] = []

    def wait(_: float) -> None:
        clock.now_s += 1
        if happens:
            happens.pop()()

    monkeypatch.setattr("time.sleep", wait)
    return happens


def test_one_that_has_not_said_who_it_is_is_waited_for_no_longer_than_a_session(
    deployment: Deployment, clock: Clock, group: FakeGroup, waits: list[Callable[[], object]]
) -> None:
    group.join()
    began_s = clock.now_s
    with pytest.raises(DeploymentHeld, match="held by an engine that does not say who it is"):
        deployment.await_turn()
    assert SESSION_S < clock.now_s - began_s < SESSION_S + 5
    assert not waits


def test_one_that_starts_at_the_same_time_is_named_once_it_speaks(
    deployment: Deployment, group: FakeGroup, tmp_path: Path, waits: list[Callable[[], object]]
) -> None:
    group.join()
    waits.append(lambda: group.another(tmp_path / "other"))
    with pytest.raises(DeploymentHeld, match=r"held by .*other on"):
        deployment.await_turn()


def test_what_an_engine_said_is_gone_with_its_topic_and_its_place_with_its_session(
    deployment: Deployment, group: FakeGroup, waits: list[Callable[[], object]]
) -> None:
    """It was stopped, and said so: beside an offset in a topic that was deleted since."""
    group.join()
    waits += [lambda: setattr(group, "member", None), lambda: None, lambda: None]
    assert started(deployment).held
    assert not waits


def test_a_copy_of_a_directory_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    names = {name: directory_id(tmp_path / name) for name in ("one", "two", "link", "none")}
    assert names["one"] == names["link"] != names["two"]
    assert names["none"] == ""
