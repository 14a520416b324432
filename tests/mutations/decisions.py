"""Control events as nobody should send them: changed, moved, signed by nobody, or sent again."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

from recallflow.control import ALL_TENANTS, Control
from recallflow.credentials import SIGNATURE, ApiKeyText, hash_of, new_salt, signed
from tests.mutations.cast import BYSTANDERS, SENDERS
from tests.mutations.values import mutated

SECRET = "what decisions are signed with, and nobody else has"
OTHER_SECRET = "what somebody else signs with, in place of that"
_AHEAD_MS = 10**9


@dataclass(frozen=True)
class Sent:
    """A record of the control topic, as a consumer is given it."""

    append_ms: int
    held: bytes | None
    keyed: bytes | None
    headed: tuple[tuple[str, bytes | None], ...]

    def value(self) -> bytes | None:
        return self.held

    def key(self) -> bytes | None:
        return self.keyed

    def headers(self) -> list[tuple[str, bytes | None]]:
        return [*self.headed]

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_LOG_APPEND_TIME, self.append_ms


def decided(append_ms: int, event: Control) -> Sent:
    timed = event.model_copy(update={"timestamp": append_ms})
    value, key = timed.model_dump_json(exclude_none=True).encode(), event.record_key
    return Sent(append_ms, value, key, signed(SECRET, key, value))


def forged(random: Random, known: Sent, append_ms: int, planted: ApiKeyText) -> Sent:
    """What somebody makes of a decision that was read off the topic, or makes up. `planted`: a key that would open
    something, if it were believed."""
    return random.choice(_WAYS)(random, replace(known, append_ms=append_ms), planted)


def _event(sent: Sent) -> dict[str, Any]:
    return dict(json.loads(sent.held or b"{}"))


def _written(sent: Sent, event: dict[str, Any], secret: str | None) -> Sent:
    """The event in the place of another's; None leaves the signature as it was."""
    value, key = json.dumps(event).encode(), f"{event['tenant_id']}/{event['type']}/{event['name']}".encode()
    return replace(sent, held=value, keyed=key, headed=sent.headed if secret is None else signed(secret, key, value))


def _again(_random: Random, known: Sent, _planted: ApiKeyText) -> Sent:
    return known


def _changed(random: Random, known: Sent, _planted: ApiKeyText) -> Sent:
    return replace(known, held=mutated(random, _event(known)))


def _moved(random: Random, known: Sent, _planted: ApiKeyText) -> Sent:
    event = _event(known) | {"tenant_id": random.choice((*SENDERS, *BYSTANDERS))}
    return _written(known, event, random.choice((None, OTHER_SECRET)))


def _cut_elsewhere(random: Random, known: Sent, _planted: ApiKeyText) -> Sent:
    """The same bytes, with another border between key and value."""
    whole = (known.keyed or b"") + (known.held or b"")
    at = random.randrange(len(whole))
    return replace(known, keyed=whole[:at], held=whole[at:])


def _planting(random: Random, known: Sent, planted: ApiKeyText) -> Sent:
    salt = new_salt()
    who = {"tenant_id": random.choice((*SENDERS, *BYSTANDERS, ALL_TENANTS)), "name": planted.name}
    event = {
        "type": "api_key", **who, "salt": salt, "hash": hash_of(salt, planted.secret), "timestamp": known.append_ms,
    }  # fmt: skip
    return _written(known, event, random.choice((None, OTHER_SECRET)))


def _revoking(random: Random, known: Sent, _planted: ApiKeyText) -> Sent:
    """Or the opposite: a key that was revoked is to hold again."""
    event = _event(known) | {"revoked": random.random() < 0.5, "timestamp": known.append_ms}
    return _written(known, event, random.choice((None, OTHER_SECRET)))


def _signed_otherwise(random: Random, known: Sent, _planted: ApiKeyText) -> Sent:
    ((name, signature), *_) = known.headed
    later = _event(known) | {"timestamp": known.append_ms + random.choice((0, 1, _AHEAD_MS))}
    headed: tuple[tuple[str, bytes | None], ...] = random.choice(
        (
            (), ((name, None),), ((name, b""),), ((name.upper(), signature),), ((name, signature), (name, signature)),
            ((SIGNATURE, b"0" * 64),), ((SIGNATURE, (signature or b"")[:-1]),), ((SIGNATURE, b"\xff" * 64),),
        )
    )  # fmt: skip
    return replace(_written(known, later, OTHER_SECRET), headed=headed)


def _nothing(random: Random, known: Sent, _planted: ApiKeyText) -> Sent:
    return replace(
        known, held=random.choice((None, b"", b"{}", b"[]", b"null")), keyed=random.choice((None, b"", b"\xff"))
    )


_WAYS: tuple[Callable[[Random, Sent, ApiKeyText], Sent], ...] = (
    _again, _changed, _moved, _cut_elsewhere, _planting, _revoking, _signed_otherwise, _nothing,
)  # fmt: skip
