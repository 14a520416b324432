"""Verdicts on tokens, API keys and headers, also under attack; they stay with records, whenever a log is read."""

import base64
import hmac
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives import serialization

from recallflow.control import DELAY_MS
from recallflow.credentials import (
    KEY_HEADER,
    TOKEN_HEADER,
    USER_HEADER,
    ApiKeyText,
    Headers,
    SigningKey,
    fingerprint,
    read_key,
)
from recallflow.operators import authorise
from recallflow.operators.events import Item, Refused
from recallflow.operators.grants import TOKEN_CHARACTERS, Issuer
from recallflow.operators.large import decode_record, encode_record
from recallflow.outputs import Answer, Output
from recallflow.records import Position, Principal, Record, Refusal
from tests.unit.operators.harness import MEMORIES, QUERIES, Harness, answers, letters, receipts
from tests.unit.senders import (
    CLAIMS,
    EC_KEY,
    EVENT,
    EXPIRES_S,
    NOW_MS,
    OTHER_RSA_KEY,
    QUERY,
    RSA_KEY,
    SECRET,
    Senders,
    api_key,
    bearer,
    ec_jwk,
    rsa_jwk,
    signing_keys,
    token,
    token_key,
    with_key,
)

SECOND_MS = 1_000
TENANT_OF_ANOTHER = EVENT | {"tenant_id": "globex"}


@pytest.fixture
def senders() -> Senders:

    made = Senders()
    made.decide(*map(token_key, signing_keys()))
    return made


def verdict(item: Item) -> str | Principal | None:
    return item.error.code if isinstance(item, Refused) else item.record.principal


def problem(item: Item) -> str:
    assert isinstance(item, Refused)
    assert item.step == "authorise"
    return str(item.error)


def forged(head: dict[str, Any]) -> str:
    """A token of a head that no library would make."""
    return ".".join(b64(part) for part in (json.dumps(head).encode(), json.dumps(CLAIMS).encode(), b""))


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"), [(RSA_KEY, "RS256", "r"), (EC_KEY, "ES256", "e"), (SECRET, "HS256", "o")]
)
@pytest.mark.parametrize("named", [True, False])
def test_token_identifies_the_sender(senders: Senders, key: Any, algorithm: str, kid: str, named: bool) -> None:
    text = token(key, algorithm, kid if named else None, projects=["x", "y"])
    assert verdict(senders.judge(bearer(text))) == Principal("service", ("x", "y"))
    assert verdict(senders.judge((("Authorization", b"bearer  " + text.encode()),), QUERY)) == Principal(
        "service", ("x", "y")
    )


@pytest.mark.parametrize("begin_s", [None, NOW_MS // SECOND_MS])
def test_a_token_holds_by_the_append_time_of_its_record(senders: Senders, begin_s: int | None) -> None:
    given = bearer(token(nbf=begin_s))
    assert isinstance(verdict(senders.judge(given, at_ms=EXPIRES_S * SECOND_MS - 1)), Principal)
    assert verdict(senders.judge(given, at_ms=EXPIRES_S * SECOND_MS)) == "unauthenticated"
    assert isinstance(verdict(senders.judge(given)), Principal)
    early = verdict(senders.judge(given, at_ms=NOW_MS - 1))
    assert isinstance(early, Principal) if begin_s is None else early == "unauthenticated"


PEM = RSA_KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
ATTACKS: dict[str, Callable[[], str | bytes]] = {
    "signed with another key": lambda: token(OTHER_RSA_KEY),
    "claims exchanged": lambda: ".".join(
        (token().split(".")[0], token(sub="root").split(".")[1], token().split(".")[2])
    ),
    "no algorithm": lambda: jwt.encode(CLAIMS, "", "none", headers={"kid": "r"}),
    "no algorithm, no kid": lambda: jwt.encode(CLAIMS, "", "none"),
    "no algorithm in capitals": lambda: forged({"alg": "NONE", "kid": "r"}),
    "algorithm is a list": lambda: forged({"alg": ["RS256"], "kid": "r"}),
    "public key as a secret": lambda: hs256(PEM, "r"),
    "public key as a secret, no kid": lambda: hs256(PEM, None),
    "public key's JWK as a secret": lambda: hs256(json.dumps(rsa_jwk()).encode(), "r"),
    "public key as the secret's": lambda: hs256(PEM, "o"),
    "kid of another algorithm": lambda: token(SECRET, "HS256", "e"),
    "kid of another key": lambda: token(RSA_KEY, "RS256", "e"),
    "kid is a path": lambda: token(bytes(32), "HS256", "../../../../../dev/null"),
    "kid is a path to a key": lambda: token(kid="file:///etc/recallflow/jwks.json"),
    "kid injects": lambda: token(kid="r' OR '1'='1"),
    "kid is empty": lambda: token(kid=""),
    "kid is no text": lambda: forged({"alg": "RS256", "kid": {"r": 1}}),
    "another RSA algorithm": lambda: token(RSA_KEY, "RS512"),
    "another padding": lambda: token(RSA_KEY, "PS256"),
    "a key of its own in the head": lambda: jwt.encode(
        CLAIMS, OTHER_RSA_KEY, "RS256", headers={"jwk": rsa_jwk(OTHER_RSA_KEY), "jku": "https://evil.example/jwks"}
    ),
    "an extension that must be understood": lambda: forged({"alg": "RS256", "kid": "r", "crit": ["x"]}),
    "payload elsewhere": lambda: forged({"alg": "RS256", "kid": "r", "b64": False, "crit": ["b64"]}),
    "no expiry": lambda: token(exp=None),
    "expiry is text": lambda: forged_claims(exp=str(EXPIRES_S)),
    "expiry is true": lambda: forged_claims(exp=True),
    "expiry is no number": lambda: forged_claims(exp=float("nan")),
    "expiry never comes": lambda: forged_claims(exp=float("inf")),
    "expiry is huge": lambda: forged_claims(exp=10**400),
    "no subject": lambda: token(sub=None),
    "subject is a number": lambda: forged_claims(sub=7),
    "subject is half a character": lambda: forged_claims(sub="\ud800"),
    "subject has a line break": lambda: token(sub="a\nb"),
    "subject is long": lambda: token(sub="a" * 513),
    "no tenant": lambda: token(tenant_id=None),
    "tenant is a list": lambda: token(tenant_id=["acme"]),
    "projects are text": lambda: token(projects="x"),
    "projects are null": lambda: forged_claims(projects=None),
    "a project is half a character": lambda: forged_claims(projects=["\udfff"]),
    "end users are a number": lambda: token(end_users=7),
    "for an audience, which nobody is": lambda: token(aud="other"),
    "empty": lambda: "",
    "dots": lambda: "...",
    "no base64": lambda: "a.b.c",
    "deep head": lambda: b64(b"[" * 9_000) + ".e30.e30",
    "deep claims": lambda: b64(b'{"alg":"RS256","kid":"r"}') + "." + b64(b"[" * 9_000) + ".AA",
    "a long number": lambda: b64(b'{"alg":"RS256","kid":' + b"1" * 9_000 + b"}") + ".e30.e30",
    "long": lambda: "a" * (TOKEN_CHARACTERS + 1),
    "huge": lambda: b"a" * 1_000_000,
    "binary": lambda: bytes(range(256)),
    "a zero": lambda: token() + "\0",
    "another line": lambda: token() + "\r\nx-end-user-id: root",
    "two tokens": lambda: token() + "," + token(),
    "letters that are none of ASCII": lambda: "ｅyJ" + token()[3:],
}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def hs256(secret: bytes, kid: str | None, **claims: Any) -> str:
    """A token signed with a secret that PyJWT would refuse, or with claims that no library would write."""
    head = {"alg": "HS256"} | ({"kid": kid} if kid else {})
    signed = ".".join(b64(json.dumps(part).encode()) for part in (head, CLAIMS | claims))
    return f"{signed}.{b64(hmac.digest(secret, signed.encode(), 'sha256'))}"


def forged_claims(**claims: Any) -> str:
    return hs256(SECRET, "o", **claims)


@pytest.mark.parametrize("event", [EVENT, QUERY], ids=["event", "query"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_token_that_does_not_hold_is_refused(
    senders: Senders, attack: str, event: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    text = ATTACKS[attack]()
    item = senders.judge(bearer(text), event)
    assert verdict(item) == "unauthenticated"
    assert item.record.headers == ()
    assert problem(item).startswith(f"{TOKEN_HEADER}: ")
    assert not caplog.records  # no step failed at it
    said = text.decode(errors="replace") if isinstance(text, bytes) else text
    assert len(said) < 5 or said not in problem(item)


@pytest.mark.parametrize("claims", [{}, {"aud": "other"}, {"aud": ["a", "b"]}, {"iss": "other"}, {"iss": ["idp"]}])
def test_token_needs_the_issuer_and_the_audience(claims: dict[str, Any]) -> None:
    senders = Senders(issuer=Issuer("idp", "recallflow"))
    senders.decide(*map(token_key, signing_keys()))
    good: dict[str, Any] = {"iss": "idp", "aud": ["other", "recallflow"]}
    assert isinstance(verdict(senders.judge(bearer(token(**good)))), Principal)
    assert verdict(senders.judge(bearer(forged_claims(**(good | claims if claims else {}))))) == "unauthenticated"


def test_key_removed_from_the_jwks_verifies_nothing(senders: Senders) -> None:
    old, new = bearer(token()), bearer(token(OTHER_RSA_KEY, kid="r2"))
    key, *_ = signing_keys()
    changed_ms = NOW_MS
    senders.decide(
        token_key(key, revoked=True), token_key(read_key(rsa_jwk(OTHER_RSA_KEY, kid="r2"))), at_ms=changed_ms
    )
    for at_ms, held, not_held in ((changed_ms + DELAY_MS - 1, old, new), (changed_ms + DELAY_MS, new, old)):
        assert isinstance(verdict(senders.judge(held, at_ms=at_ms)), Principal)
        assert verdict(senders.judge(not_held, at_ms=at_ms)) == "unauthenticated"
    senders.decide(token_key(key), at_ms=changed_ms + 1)  # somebody sends the old announcement again
    assert verdict(senders.judge(old, at_ms=changed_ms + 2 * DELAY_MS)) == "unauthenticated"


@pytest.mark.parametrize(
    "announced",
    [
        {"jwk": rsa_jwk(OTHER_RSA_KEY)},  # not the key of its fingerprint
        {"jwk": None},
        {"jwk": {"kty": "RSA"}},
        {"jwk": ec_jwk()},
        {"jwk": {"kty": "oct", "k": b64(SECRET)}, "algorithm": "RS256"},
        {"jwk": {"kty": "oct", "k": b64(bytes(32))}, "algorithm": "HS256"},  # a secret that all can read
    ],
)
def test_signing_key_with_wrong_fields_verifies_nothing(announced: dict[str, Any]) -> None:
    senders = Senders()
    senders.decide(token_key(signing_keys()[0], **announced))
    for text in (token(), token(OTHER_RSA_KEY), token(EC_KEY, "ES256"), hs256(bytes(32), "r"), hs256(SECRET, "r")):
        assert verdict(senders.judge(bearer(text))) == "unauthenticated"


def test_missing_secret_is_named_by_its_fingerprint(senders: Senders, caplog: pytest.LogCaptureFixture) -> None:
    senders.authoriser.warn()
    assert not caplog.records
    other = b"another secret of thirty-two bytes"
    senders.decide(token_key(SigningKey.of_secret(other, "gone")))
    senders.authoriser.warn()
    assert fingerprint(other)[:16] in caplog.text
    assert verdict(senders.judge(bearer(token(other, "HS256", "gone")))) == "unauthenticated"


def test_a_token_is_verified_once(senders: Senders, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, verified = jwt.decode, []

    def counted(given: str, *rest: Any, **more: Any) -> Any:
        verified.append(given)
        return decode(given, *rest, **more)

    monkeypatch.setattr(jwt, "decode", counted)
    first, second = token(), token(sub="other")
    for text in (first, second) * 10:
        assert isinstance(verdict(senders.judge(bearer(text))), Principal)
    assert verified == [first, second]


def test_api_key_is_valid_a_second_after_its_creation(senders: Senders) -> None:
    key = senders.key(at_ms=NOW_MS, projects=["x"])
    assert verdict(senders.judge(with_key(key), at_ms=NOW_MS + DELAY_MS)) == Principal(key.name, ("x",))
    assert verdict(senders.judge(with_key(key), at_ms=NOW_MS + DELAY_MS - 1)) == "unauthenticated"
    other = senders.judge(with_key(key), TENANT_OF_ANOTHER, NOW_MS + DELAY_MS)
    unknown = senders.judge(with_key(ApiKeyText.new()), at_ms=NOW_MS + DELAY_MS)
    wrong = senders.judge(with_key(key._replace(secret=ApiKeyText.new().secret)), at_ms=NOW_MS + DELAY_MS)
    assert verdict(other) == "unauthenticated"
    assert problem(other) == problem(unknown) == problem(wrong)  # nobody learns which keys there are


def test_api_key_as_bearer_holds_as_in_its_own_header(senders: Senders) -> None:
    key = senders.key()
    assert verdict(senders.judge(bearer(key.text()))) == verdict(senders.judge(with_key(key)))
    assert verdict(senders.judge(bearer(key._replace(secret=ApiKeyText.new().secret).text()))) == "unauthenticated"


@pytest.mark.parametrize("holder", ["acme", "*"])
def test_a_revocation_is_final(senders: Senders, holder: str) -> None:
    key = ApiKeyText.new()
    made = api_key(key, holder)
    senders.decide(made)
    senders.decide(made.model_copy(update={"revoked": True}), at_ms=NOW_MS)
    senders.decide(made, at_ms=NOW_MS + 1)  # sent again, by whoever can write to the topic
    assert verdict(senders.judge(with_key(key), at_ms=NOW_MS + DELAY_MS - 1)) == Principal(key.name)
    late = senders.judge(with_key(key), at_ms=NOW_MS + 10 * DELAY_MS)
    other = senders.judge(with_key(key._replace(secret=ApiKeyText.new().secret)), at_ms=NOW_MS + 10 * DELAY_MS)
    assert verdict(late) == verdict(other) == "unauthenticated"
    assert problem(late) != problem(other)  # only the holder of the secret is told of the revocation


@pytest.mark.parametrize("known", [True, False])
def test_keys_are_compared_in_constant_time(senders: Senders, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    key, compared = senders.key(), []
    compare_digest = hmac.compare_digest

    def seen(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare_digest(one, other)

    monkeypatch.setattr(hmac, "compare_digest", seen)
    given = key._replace(secret=ApiKeyText.new().secret) if known else ApiKeyText.new()
    assert verdict(senders.judge(with_key(given))) == "unauthenticated"
    assert compared == [(64, 64)]


@pytest.mark.parametrize(
    "headers",
    [
        (), None, ((KEY_HEADER, None),), ((KEY_HEADER, b""),), ((KEY_HEADER, b"rfk_"),), ((KEY_HEADER, b"\xff\xfe"),),
        ((KEY_HEADER, b"\x00" * 1_000_000),), ((TOKEN_HEADER, b"Basic cm9vdDpyb290"),), ((TOKEN_HEADER, b"Bearer"),),
        ((TOKEN_HEADER, None),), ((USER_HEADER, b"ann"),),
    ],
)  # fmt: skip
def test_headers_without_credentials_are_refused(senders: Senders, headers: Headers | None) -> None:
    item = senders.judge(headers)
    assert verdict(item) == "unauthenticated"
    assert len(problem(item)) < 200


def test_credentials_that_are_given_twice_are_refused(senders: Senders) -> None:
    key, text = with_key(senders.key()), bearer(token())
    for headers in (
        key + text,
        key + key,
        text + text,
        (*key, ("X-API-KEY", b"other")),
        (*key, (USER_HEADER, b"ann")) * 2,
    ):
        item = senders.judge(headers)
        assert verdict(item) == "unauthenticated"
        assert item.record.headers is not None
        assert {name for name, _ in item.record.headers} <= {USER_HEADER}


@pytest.mark.parametrize("kind", ["key", "token"])
@pytest.mark.parametrize(
    ("scope", "end_user", "event", "allowed"),
    [
        ({}, None, {}, True),
        ({}, b"ann", {}, True),
        ({}, b"bob", {}, False),
        ({"end_users": ["ann", "bob"]}, None, {}, True),
        ({"end_users": ["ann", "bob"]}, b"ann", {}, True),
        ({"end_users": ["ann", "bob"]}, b"bob", {}, False),
        ({"end_users": ["bob"]}, None, {}, False),
        ({"end_users": ["bob"]}, b"ann", {}, False),
        ({"end_users": []}, None, {}, False),
        ({"end_users": ["ann"]}, None, {"user_id": "ann "}, False),
        ({"end_users": ["ann"]}, None, {"user_id": "Ann"}, False),
        ({"end_users": ["ann"]}, None, {"user_id": "ann/x"}, False),
        ({"environments": ["prod"]}, None, {}, True),
        ({"environments": ["test"]}, None, {}, False),
        ({"environments": []}, None, {}, False),
        (
            {"environments": ["prod"]}, None, {"type": "user.erase", "session_id": None}, False,
        ),  # it is for all environments
        ({"environments": ["prod"]}, None, {"type": "user.erase", "session_id": None, "environment": "prod"}, True),
        ({}, None, {"type": "user.erase", "session_id": None}, True),
    ],
)  # fmt: skip
def test_scopes_of_credentials(
    senders: Senders, kind: str, scope: dict[str, Any], end_user: bytes | None, event: dict[str, Any], allowed: bool
) -> None:
    given = with_key(senders.key(**scope)) if kind == "key" else bearer(token(**scope))
    headers = given if end_user is None else (*given, ("X-End-User-Id", end_user))
    found = verdict(senders.judge(headers, EVENT | event))
    assert isinstance(found, Principal) if allowed else found == "forbidden"


def test_a_token_of_another_tenant_is_forbidden(senders: Senders) -> None:
    item = senders.judge(bearer(token()), TENANT_OF_ANOTHER)
    assert verdict(item) == "forbidden"
    assert item.record.principal == Principal("service"), "who tries is known, for the access record"
    assert "acme" not in problem(item)
    for tenant_id in ("*", "acme ", "Acme", "acme/ann"):
        assert verdict(senders.judge(bearer(token(tenant_id=tenant_id)))) in ("forbidden", "unauthenticated")


@pytest.mark.parametrize("mode", ["off", "required"])
@pytest.mark.parametrize("event", [EVENT, QUERY, b"{", b""], ids=["event", "query", "no JSON", "empty"])
def test_no_credentials_stay_in_headers(mode: str, event: Any) -> None:
    senders = Senders(mode)
    key = senders.key()
    secrets = [
        *with_key(key), ("AUTHORIZATION", b"x"), ("Proxy-Authorization", b"x"), ("cookie", b"x"), ("X-Api-Key", None),
        ("Set-Cookie", b"x"), ("cookie ", b"x"), (key.text(), b"1"), (f"Bearer {token()}", None),
    ]  # fmt: skip
    item = senders.judge((("a", b"1"), *secrets, ("b", None)), event)
    assert item.record.headers == (("a", b"1"), ("b", None))
    assert item.record.principal is None
    if mode == "off" and isinstance(event, dict):
        assert not isinstance(item, Refused)


def test_auto_judges_from_a_second_after_the_first_key_on() -> None:
    senders = Senders("auto")
    assert verdict(senders.judge(())) is None
    assert "off until a key is created" in senders.authoriser.describe()
    assert not senders.authoriser.needs_credentials()
    key = senders.key("globex", at_ms=NOW_MS)
    assert verdict(senders.judge((), at_ms=NOW_MS + DELAY_MS - 1)) is None
    assert verdict(senders.judge((), at_ms=NOW_MS + DELAY_MS)) == "unauthenticated"
    assert "2027-01-15T08:00:01Z need credentials" in senders.authoriser.describe()
    senders.decide(api_key(key, "globex", revoked=True), at_ms=NOW_MS + 1)  # without any key it stays on
    assert verdict(senders.judge((), at_ms=NOW_MS + 10 * DELAY_MS)) == "unauthenticated"
    assert verdict(senders.judge(())) is None
    assert senders.authoriser.needs_credentials()


def test_late_decision_is_reported(senders: Senders, caplog: pytest.LogCaptureFixture) -> None:
    senders.judge(())
    senders.key(at_ms=NOW_MS - DELAY_MS + 1)
    assert not caplog.records
    key = senders.key(at_ms=NOW_MS - DELAY_MS)
    assert senders.authoriser.late == {"api_key": 1}
    assert f"api_key {key.name} of acme" in caplog.text
    assert key.secret not in caplog.text


def test_internal_error_admits_no_record(
    senders: Senders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(KEY_HEADER)

    monkeypatch.setattr(authorise, "_credentials", fail)
    key = senders.key()
    item = senders.judge(with_key(key))
    assert verdict(item) == "internal_error"
    assert item.record.headers == ()
    assert key.secret not in caplog.text
    assert {record.levelname for record in caplog.records} == {"ERROR"}


class Engine(Harness):
    """A state partition behind authorisation. Records of the log keep headers and times across kills."""

    def __init__(self, path: Path, senders: Senders) -> None:
        self.senders = senders
        self.sent: dict[tuple[str, int], tuple[Headers, int]] = {}
        super().__init__(path, decode=lambda record: self.senders.authorise(record))

    def send(self, topic: str, event: Mapping[str, Any], headers: Headers, at_ms: int = NOW_MS) -> None:
        self.sent[topic, len(self.lines[topic])] = headers, at_ms
        self.write(topic, event)

    def _made(self, topic: str, number: int, line: bytes, fields: Mapping[str, Any]) -> Record:
        headers, at_ms = self.sent[topic, number]
        return super()._made(topic, number, line, fields)._replace(headers=headers, append_ms=at_ms)


@pytest.fixture
def make_engine(tmp_path: Path) -> Callable[[Senders], Engine]:
    numbers = itertools.count()
    return lambda senders: Engine(tmp_path / f"state{next(numbers)}", senders)


def message(number: int, **fields: Any) -> dict[str, Any]:
    return EVENT | {"id": f"m{number}", "content": f"Tea number {number}.", "receipt": True} | fields


def came(outputs: list[Output]) -> list[tuple[int, str]]:
    """By offset, a receipt's outcome or an error's code."""
    found = [(letter.position.offset, letter.error.code) for letter in letters(outputs)]
    said = [(int(one["position"].rpartition(":")[2]), one["outcome"]) for one in receipts(outputs)]
    return sorted([*found, *said])


def test_log_of_expired_credentials_replays_to_the_same_verdicts(make_engine: Callable[[Senders], Engine]) -> None:
    """Decisions come while the first engine runs, up to a second late. The second one knows all of them from the start,
    in another order, as a rebuild years later does; no clock is asked."""
    running = Senders("auto")
    first = make_engine(running)
    rsa, ec, secret = signing_keys()
    key_text = ApiKeyText.new()
    key, made = with_key(key_text), api_key(key_text)
    other = OTHER_RSA_KEY
    decided = [
        (2 * SECOND_MS, token_key(rsa)),
        (2 * SECOND_MS, token_key(secret)),
        (3 * SECOND_MS, made),
        (12 * SECOND_MS, token_key(rsa, revoked=True)),
        (12 * SECOND_MS, token_key(read_key(rsa_jwk(other, kid="r2")))),
        (15 * SECOND_MS, made.model_copy(update={"revoked": True})),
        (16 * SECOND_MS, made),  # sent again
        (16 * SECOND_MS, token_key(rsa)),
        (17 * SECOND_MS, token_key(ec)),
    ]
    expires_s = NOW_MS // SECOND_MS + 10
    senders = itertools.cycle(
        [
            (), key, bearer(token(exp=expires_s, end_users=["ann"])),
            bearer(token(SECRET, "HS256", "o", nbf=expires_s)), bearer(token(other, kid="r2")), bearer(token(other)),
            (*key, ("x-end-user-id", b"bob")),
        ]
    )  # fmt: skip
    ahead, known = iter([*decided, (10**9, decided[0][1])]), []
    next_one = next(ahead)
    outputs = []
    for number in range(140):
        at_ms = NOW_MS + number * 150
        while NOW_MS + next_one[0] + DELAY_MS <= at_ms:  # the engine hears of it at the last moment
            running.decide(next_one[1], at_ms=NOW_MS + next_one[0])
            known.append(next_one)
            next_one = next(ahead)
        first.send(MEMORIES, message(number), next(senders), at_ms)
        outputs += first.read(MEMORIES)
    assert running.authoriser.late == {}
    verdicts = came(outputs)
    codes = {code for _, code in verdicts}
    assert codes == {"created", "unauthenticated", "forbidden"}
    assert len(known) == len(decided)

    later = Senders("auto")
    for at_ms, event in reversed(decided):
        later.decide(event, at_ms=NOW_MS + at_ms)
    second = make_engine(later)
    second.lines, second.sent = first.lines, first.sent
    again: list[Output] = []
    while batch := second.read(MEMORIES, 17):
        again += batch
    assert came(again) == verdicts
    assert second.hash() == first.hash()
    # What each verdict rests on was there at some time, and not at another.
    by_sender = {number: [code for at, code in verdicts if at % 7 == number] for number in range(7)}
    assert {"created", "unauthenticated"} <= set(by_sender[0] + by_sender[1])
    for number in (0, 1, 2, 3, 4):
        assert len(set(by_sender[number])) == 2, number


@pytest.mark.parametrize(
    "verdict",
    [
        {"principal": Principal("service", ("x", "y"))}, {"principal": Principal("service")},
        {"refusal": Refusal("authorise", "forbidden", "user_id", "not yours")}, {},
    ],
)  # fmt: skip
def test_a_verdict_is_stored_with_its_record(verdict: dict[str, Any]) -> None:
    record = Record(Position("memory.events", 0, 1), b"{}", 1, headers=(("a", None),), **verdict)
    assert decode_record(orjson.loads(orjson.dumps(encode_record(record)))) == record


@pytest.mark.parametrize("refused", ["unauthenticated", "forbidden", "invalid_event"])
def test_refused_question_learns_nothing_at_its_own_address(
    make_engine: Callable[[Senders], Engine], senders: Senders, refused: str
) -> None:
    engine = make_engine(senders)
    engine.send(MEMORIES, message(0), bearer(token()))
    engine.read(MEMORIES)
    engine.send(
        QUERIES, QUERY | {"reply_to": {"topic": "elsewhere"}} | ({"query": 7} if refused == "invalid_event" else {}),
        bearer(token(end_users=[])) if refused == "forbidden" else (),
    )  # fmt: skip
    outputs = engine.read(QUERIES)
    (answer,) = (output for output in outputs if isinstance(output, Answer))
    assert answer.reply_to is None
    (said,) = answers(outputs)
    assert said["error"]["code"] == refused
    assert {name for name, value in said.items() if value} == {"query_id", "status", "error"}
    (letter,) = letters(outputs)
    assert letter.record.headers == ()
