"""Mutated records through decode, verdict and state, and what must hold of what comes out."""

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, get_args

import orjson

from recallflow.connectors.kafka.control import take
from recallflow.connectors.kafka.messages import Outgoing
from recallflow.control import ALL_TENANTS, ControlHistory, TokenKey
from recallflow.credentials import KEY_HEADER, TOKEN_HEADER
from recallflow.errors import ErrorCode
from recallflow.events import Event
from recallflow.operators.authorise import Authoriser, Trust
from recallflow.operators.events import Ask, Item, Misrouted, Refused, decode
from recallflow.operators.grants import Issuer
from recallflow.outputs import Answer, DeadLetter, Output
from recallflow.owner import Owner
from recallflow.parsing import QUERY_TYPES, parse
from recallflow.records import Position, Record
from recallflow.signing_keys import SigningKey, read_jwks
from tests.mutations.cast import (
    AUDIENCE,
    BEGIN_MS,
    BYSTANDERS,
    DAY_MS,
    ENVIRONMENTS,
    ISSUER,
    SECRET,
    SENDERS,
    STEP_MS,
    USERS,
    Cast,
    Credential,
    decided,
)
from tests.mutations.forged import headers
from tests.mutations.state import TOPICS, State
from tests.mutations.values import mutated, templates

BATCH = 100
WAITS_MOST = 20_000  # records after which a question is surely answered: by then, its 60 seconds are over
CODES = frozenset(get_args(ErrorCode))
EXAMPLES, EXAMPLE_CHARACTERS = 3, 1_000  # of each kind of finding
_NONCE = re.compile(rb"nonce-[0-9a-f]{16}")
_VERDICTS = ("unauthenticated", "forbidden")
_SECRET_CHARACTERS = 20  # a shorter value of a header gives nobody away


@dataclass
class Report:
    records: int = 0
    accepted: Counter[str] = field(default_factory=Counter)  # by type
    refused: Counter[str] = field(default_factory=Counter)  # by code
    outputs: Counter[str] = field(default_factory=Counter)  # by kind
    owners: int = 0
    found: Counter[str] = field(default_factory=Counter)  # what must not be, by kind
    examples: list[str] = field(default_factory=list)

    def find(self, kind: str, example: str) -> None:
        self.found[kind] += 1
        if self.found[kind] <= EXAMPLES:
            self.examples.append(f"{kind}: {example}"[:EXAMPLE_CHARACTERS])


class _Log(logging.Handler):
    def __init__(self, trial: "Trial") -> None:
        super().__init__(logging.WARNING)
        self._trial = trial

    def emit(self, record: logging.LogRecord) -> None:
        self._trial.logged(record.getMessage())


class Trial:
    """A run of so many records, all of it drawn from a seed but for the secrets."""

    def __init__(self, folder: Path, seed: int, count: int) -> None:
        self.report = Report()
        self._folder, self._seed, self._count = folder, seed, count
        self._cast = Cast(BEGIN_MS + count * STEP_MS)
        self._history = ControlHistory()
        self._offsets: Counter[str] = Counter()
        self._nonces: dict[bytes, Owner] = {}
        self._secrets: list[str] = []
        self._counted: dict[str, list[Item]] = defaultdict(list)  # by tenant
        self._sent: dict[Position, Record] = {}
        self._askers: dict[Position, Ask] = {}

    def run(self) -> Report:
        handler = _Log(self)
        logger = logging.getLogger("recallflow")
        logger.addHandler(handler)
        try:
            self._run()
        finally:
            logger.removeHandler(handler)
        return self.report

    def logged(self, line: str) -> None:
        if "our own code failed" in line:
            self.report.find("an exception", line)
        if any(secret in line for secret in self._secrets) or _NONCE.search(line.encode()):
            self.report.find("a secret or a memory in the log", line)

    # ------------------------------------------------------------------ a run

    def _run(self) -> None:
        cast = self._cast
        keys, *_ = read_jwks(orjson.dumps(cast.signers.jwks()))
        announced = [(BEGIN_MS - DAY_MS, _announced(key)) for key in keys]
        decisions = [decided(*one) for one in sorted((*announced, *cast.decided), key=lambda one: one[0])]
        if lost := [left_out for sent in decisions if (left_out := take(sent, self._history, SECRET)) is not None]:
            self.report.find("a decision does not count", str(lost))
        secrets = {key.fingerprint: key.secret for key in keys if key.secret is not None}
        self._authoriser = Authoriser(self._history, Trust("required", Issuer(ISSUER, AUDIENCE), secrets))
        self._secrets = [one.secret for one in cast.everything()]
        state = State(self._folder / "all", self._history)
        self._take(state, [*self._seeds()])
        before = {owner: state.raw(owner) for owner in self._nonces.values() if owner.tenant_id in BYSTANDERS}
        batch: list[Record] = []
        for number in range(self._count):
            batch.append(self._record(number))
            if len(batch) == BATCH:
                self._take(state, batch)
                batch = []
        self._take(state, batch)
        for output, outgoing in state.finish():
            self._check_output(output, outgoing)
        self.report.records = self._count
        for owner, digest in before.items():
            if state.raw(owner) != digest:
                self.report.find("what is stored of somebody who sent nothing changed", str(owner))
        self._check_stored(state.stored())
        state.close()

    def _take(self, state: State, records: Sequence[Record]) -> None:
        if not records:
            return
        items = []
        for record in records:
            item = self._authoriser.authorise(decode(record))
            self._sent[record.position] = record
            if len(self._sent) > WAITS_MOST:
                self._askers.pop(first := next(iter(self._sent)), None)
                del self._sent[first]
            self._check_verdict(record, item)
            items.append(item)
        state.now_ms = records[-1].append_ms
        for output, outgoing in state.apply(items):
            self._check_output(output, outgoing)

    def _check_stored(self, stored: dict[Owner, str]) -> None:
        """Each tenant has what it has where it alone sends anything."""
        self.report.owners = len(stored)
        for number, (tenant, items) in enumerate(self._counted.items()):
            alone = State(self._folder / f"alone{number}", self._history)
            for first in range(0, len(items), BATCH):
                alone.now_ms = items[first].record.append_ms
                alone.apply(items[first : first + BATCH])
            alone.finish()
            expected = alone.stored()
            alone.close()
            found = {owner: digest for owner, digest in stored.items() if owner.tenant_id == tenant}
            if found != expected:
                other = sorted(
                    str(owner) for owner in expected.keys() | found.keys() if expected.get(owner) != found.get(owner)
                )
                self.report.find("other tenants changed what is stored", str(other))
        if strangers := [owner for owner in stored if owner.tenant_id not in self._counted]:
            self.report.find("something is stored of no tenant there is", str(strangers))

    # ------------------------------------------------------------------ records

    def _seeds(self) -> Iterator[Record]:
        random = Random(self._seed)
        senders = [*((one[0]) for one in self._cast.credentials.values()), *self._cast.witnesses]
        for credential in senders:
            for user in USERS:
                owner = Owner(str(credential.tenant), "prod", user)
                nonce = f"nonce-{random.getrandbits(64):016x}"
                self._nonces[nonce.encode()] = owner
                who = {"tenant_id": owner.tenant_id, "user_id": user}
                event = {"type": "memory", "id": "nonce", "content": f"The nonce is {nonce}.", "tags": ["a"], **who}
                yield self._made(TOPICS.memory, orjson.dumps(event), BEGIN_MS - 1, [_header(credential)])

    def _record(self, number: int) -> Record:
        """The record of a number: drawn from it and the seed alone."""
        random = Random(f"{self._seed}:{number}")
        cast = self._cast
        tenant = random.choice(SENDERS)
        credential = cast.deployment if random.random() < 0.02 else random.choice(cast.credentials[tenant])
        user = random.choice(credential.users or USERS if random.random() < 0.8 else USERS)
        environment = random.choice(
            credential.environments or ENVIRONMENTS[:1] if random.random() < 0.8 else ENVIRONMENTS
        )
        if random.random() < 0.1:
            tenant = random.choice((*SENDERS, *BYSTANDERS))
        event = {"tenant_id": tenant, "user_id": user, "environment": environment, **random.choice(templates(random))()}
        kind = event["type"]
        if kind == "user.erase" and random.random() < 0.9:  # else nobody keeps anything
            event["type"] = "user.stats"
        topic = TOPICS.queries if kind in QUERY_TYPES else TOPICS.memory
        if random.random() < 0.05:
            topic = random.choice((TOPICS.queries, TOPICS.memory))
        value = mutated(random, event) if random.random() < 0.6 else orjson.dumps(event)
        own = headers(random, cast, credential, user)
        key = random.choice((f"{tenant}/{user}".encode(), None, b"", b"\xff" * 9, b"k" * 4_200))
        return self._made(topic, value, BEGIN_MS + number * STEP_MS, own, key)

    def _made(
        self, topic: str, value: bytes, append_ms: int, own: Iterable[tuple[str, bytes | None]],
        key: bytes | None = None,
    ) -> Record:  # fmt: skip
        position = Position(topic, 0, self._offsets[topic])
        self._offsets[topic] += 1
        return Record(position, value, append_ms, key, headers=tuple(own))

    # ------------------------------------------------------------------ checks

    def _check_verdict(self, record: Record, item: Item) -> None:
        if item.record.headers is not None and (shown := self._leaked(record, repr(item.record.headers).encode())):
            self.report.find("a credential in the headers after the verdict", f"{record.position} {shown}")
        shown_by = [one for one in self._cast.everything() if _bare(one) in repr(record.headers)]
        if isinstance(item, Refused):
            if item.step == "authorise" and len(shown_by) == 1 and self._is_plain(record, shown_by[0]):
                self.report.find("refused with credentials that cover it", f"{record.position} {item.error}")
            return
        assert not isinstance(item, Misrouted)  # there is one state partition
        event: Event = item.query if isinstance(item, Ask) else item.event
        self.report.accepted[event.type] += 1  # type: ignore[attr-defined]
        principal = item.record.principal
        owner = Owner(event.tenant_id, event.environment, event.user_id)
        by = [one for one in shown_by if one.covers(owner, record.append_ms)]
        if principal is None or principal.name not in [one.name for one in by]:
            self.report.find("counts without credentials that cover it", f"{owner} {principal} {record}")
            return
        if isinstance(item, Ask):
            self._askers[record.position] = item
        else:
            self._counted[owner.tenant_id].append(item)

    def _is_plain(self, record: Record, credential: Credential) -> bool:
        if [*(record.headers or ())] != [_header(credential)]:
            return False
        event = parse(record.value)
        return credential.covers(Owner(event.tenant_id, event.environment, event.user_id), record.append_ms)

    def _check_output(self, output: Output, outgoing: Outgoing) -> None:
        self.report.outputs[type(output).__name__] += 1
        position = output.position  # type: ignore[union-attr]
        record = self._sent[position]
        said = b"\n".join((outgoing.value or b"", repr(outgoing.all_headers).encode()))
        if isinstance(output, DeadLetter):
            self.report.refused[output.error.code] += 1
            self._check_refusal(record, output.error.code, [problem for _, problem in output.error.fields])
            said = said.replace(record.value, b"", 1)  # it is a copy of the record, whoever may read those
        elif isinstance(output, Answer) and output.response.error is not None:
            error: Any = output.response.error
            self._check_refusal(record, error.code, [error.message])
            if error.code in _VERDICTS and output.response.applied:
                self.report.find("who may not ask is told what was applied", str(position))
        if shown := self._leaked(record, said):
            self.report.find("a credential in what was sent", f"{position} {shown} {outgoing.all_headers}")
        for nonce in set(_NONCE.findall(said)) & self._nonces.keys():
            asked = self._askers.get(position)
            if asked is None or self._nonces[nonce] != asked.owner:
                self.report.find("an owner is shown what is another's", f"{self._nonces[nonce]} {record}")
            elif asked.record.principal is None or asked.record.principal.projects is not None:
                self.report.find("a project is shown what is of no project", str(record))

    def _leaked(self, record: Record, said: bytes) -> str:
        """The header that is in what was said, if any, as far as it is a credential: by its name, or of somebody."""
        for name, value in record.headers or ():
            text = (value or b"").strip()
            bare = text.rpartition(b" ")[2]
            by_name = name.lower() in (KEY_HEADER, TOKEN_HEADER)
            parts = (bare, bare.rpartition(b".")[2]) if by_name else self._secrets_in(text)
            if any(len(part) > _SECRET_CHARACTERS and part in said for part in parts):
                return name
        return ""

    def _secrets_in(self, text: bytes) -> list[bytes]:
        return [secret for secret in map(str.encode, self._secrets) if secret in text]

    def _check_refusal(self, record: Record, code: str, problems: Sequence[str]) -> None:
        if code not in CODES or not problems or not all(problem.strip() for problem in problems):
            self.report.find("refused without a reason", f"{record.position} {code} {problems}")
        if code == "internal_error":
            self.report.find("our own code failed", str(record))


def _announced(key: SigningKey) -> TokenKey:
    fields = {"algorithm": key.algorithm, "jwk": key.jwk, "fingerprint": key.fingerprint}
    return TokenKey.model_validate({"type": "token_key", "tenant_id": ALL_TENANTS, "name": key.name, **fields})


def _header(credential: Credential) -> tuple[str, bytes]:
    return credential.header, credential.value.encode()


def _bare(credential: Credential) -> str:
    return credential.value.removeprefix("Bearer ")
