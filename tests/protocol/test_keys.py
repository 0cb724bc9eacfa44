"""One secret, the same keys everywhere; every process a name of its own, which only it can have."""

from __future__ import annotations

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from taskd.protocol import gate, keys

SERVER = b"N*5-$3[q&As0YsLSxbO+fU!@*m+dD{iQ<0%(59!G"


def test_the_keys_of_a_secret_never_change():
    # agents and managers of different releases must agree: changing these values breaks jobs during
    # an upgrade
    found = keys.derive(b"secret")
    assert found.server_public == SERVER
    assert found.name(bytes(32)) == NAME
    assert found.records.hex() == RECORDS


NAME = "bf0365503d174d544b86ca7225295dbb"
RECORDS = "aace163df583549f249f57edb0772c8aa0759c3390896b122ed1885bf9ed2daf"


def test_parts_fit_and_differ():
    k = keys.derive(b"secret")
    assert zmq.curve_public(k.server_secret) == k.server_public
    assert (
        len({z85.decode(k.server_secret), z85.decode(k.server_public), k.members, k.records}) == 4
    )
    assert len(k.records) == len(k.members) == 32
    assert keys.derive(b"secret2") != k
    with pytest.raises(keys.BadSecret, match="openssl rand"):
        keys.derive(b"")


def test_secrets_are_not_printed():
    k = keys.derive(b"hush hush")
    one = k.identity()
    shown = repr(k) + repr(one)
    for hidden in (k.server_secret, one.secret, k.secret):
        assert hidden.decode() not in shown
    for hidden in (k.members, k.records):
        assert repr(hidden) not in shown and hidden.hex() not in shown


def test_a_name_follows_from_the_key_and_the_secret():
    k, other = keys.derive(b"one"), keys.derive(b"two")
    a, b = k.identity(), k.identity()
    assert a.name != b.name and a.public != b.public
    assert zmq.curve_public(a.secret) == a.public and k.name(z85.decode(a.public)) == a.name
    assert other.name(z85.decode(a.public)) != a.name


def test_a_child_derives_the_same_keys():
    for secret in (b"text", "pässword".encode(), b"\xff\xfe raw"):
        k = keys.derive(secret)
        assert keys.derive(k.environment["TASKD_SECRET"].encode(errors="surrogateescape")) == k
    assert keys.derive(b"a\0b").environment == {}, (
        "no environment takes it; it came from a file, which the child reads too"
    )


@pytest.fixture(scope="module")
def ours():
    context = zmq.Context()
    refused: list[str] = []
    yield gate.Gate(context, keys.derive(b"secret"), refused.append), refused
    context.destroy(linger=0)


FRAMES = st.lists(
    st.binary(max_size=40)
    | st.sampled_from([b"1.0", b"CURVE", b"NULL", b"PLAIN", b"taskd", bytes(32)]),
    max_size=9,
)


@given(FRAMES)
def test_whatever_is_asked_of_the_gate_is_answered_and_only_a_key_is_let_in(ours, frames):
    door, refused = ours
    refused.clear()
    answer = door._verdict(frames)
    assert len(answer) == 6 and answer[1] == (frames[1] if len(frames) > 1 else b"")
    let_in = (
        len(frames) == 7 and frames[0] == b"1.0" and frames[5] == b"CURVE" and len(frames[6]) == 32
    )
    assert answer[2] == (b"200" if let_in else b"400") and len(refused) == (not let_in)
    assert answer[4] == (keys.derive(b"secret").name(frames[6]).encode() if let_in else b"")
