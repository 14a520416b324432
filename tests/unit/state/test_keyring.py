"""Names become keys that keep everyone apart and tell nothing."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from recallflow.owner import Owner
from recallflow.state.keyring import Keyring
from recallflow.state.keys import NAME_BYTES, OWNER_BYTES

KEYRING = Keyring(bytes(range(32)))
ANN = KEYRING.owner(Owner("acme", "prod", "ann"))
BO = KEYRING.owner(Owner("acme", "prod", "bo"))
# Parts that, put together carelessly, read the same: a/b + c and a + b/c, quotes that close a JSON text, accents
# written in two ways, blanks that fall away, the empty text.
PARTS = [
    "", "null",
    "a", "a/b", "b/c", "c", "/", "a/", "/c", '"', 'a","b', "\\", "..", "é", "e\u0301", " a", "a ", "A", "💬",
]  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(PARTS)
OWNERS = st.builds(Owner, TEXT, TEXT, TEXT)


def test_hostile_owners_have_keys_of_their_own() -> None:
    owners = [Owner(*parts) for parts in product(PARTS, repeat=3)]
    found = {KEYRING.owner(owner) for owner in owners}
    assert len(found) == len(owners)
    assert {len(key) for key in found} == {OWNER_BYTES}, "of one length, so that none is another's prefix"


@given(one=OWNERS, other=OWNERS)
def test_owners_share_a_key_only_if_they_are_the_same(one: Owner, other: Owner) -> None:
    assert (KEYRING.owner(one) == KEYRING.owner(other)) == (one == other)


@given(one=TEXT, other=TEXT)
def test_only_equal_names_of_one_owner_share_a_key(one: str, other: str) -> None:
    assert (KEYRING.name(ANN, one) == KEYRING.name(ANN, other)) == (one == other)
    assert KEYRING.name(ANN, one) != KEYRING.name(BO, one)
    assert len(KEYRING.name(ANN, one)) == NAME_BYTES


@given(one=st.binary(max_size=12), other=st.binary(max_size=12))
def test_contents_share_a_digest_only_if_they_are_the_same(one: bytes, other: bytes) -> None:
    assert (KEYRING.digest(ANN, one) == KEYRING.digest(ANN, other)) == (one == other)
    assert KEYRING.digest(ANN, one) != KEYRING.digest(BO, one)


def test_edge_key_holds_its_ordered_ends_and_type() -> None:
    one, other = KEYRING.name(ANN, "a"), KEYRING.name(ANN, "b")
    both_ways = ((one, other), (other, one))
    named = {KEYRING.edge(owner, *ends, kind) for owner in (ANN, BO) for ends in both_ways for kind in "tu"}
    assert len(named) == 8
    assert {len(name) for name in named} == {NAME_BYTES}


def test_another_secret_gives_unrelated_keys() -> None:
    other = Keyring(bytes(32))
    assert other.owner(Owner("acme", "prod", "ann")) != ANN
    assert other.name(ANN, "m") != KEYRING.name(ANN, "m")
    assert other.digest(ANN, b"m") != KEYRING.digest(ANN, b"m")


def test_keys_are_the_same_in_every_release() -> None:
    # A state directory's data is found by these: another scheme is another format version.
    assert ANN.hex() == "ed699e075be1c1967a46495794e4d3f4"
    assert KEYRING.name(ANN, "m1").hex() == "ed210d7784e1cc852995ab0f4fc7a8cc"
    assert KEYRING.node(ANN, "tag:tea").hex() == "e0cdfbc158398e66ef08e61f375a60f8"
    assert KEYRING.edge(ANN, bytes(16), bytes(16), "likes").hex() == "a77bffbf34f27b4356ef1a955021acf0"
    assert KEYRING.digest(ANN, b"hello").hex() == "776be67114c9cdbac374fbbe5f0dc304"
    assert KEYRING.user("acme", "ann").hex() == "270fd791507b9c6b2d7b0f6707b16be8"
    assert KEYRING.tenant("acme").hex() == "47237753f0e1aa2b152a2a906865bd54"
