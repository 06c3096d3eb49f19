"""A server that alters ciphertexts, a silo that sends others: refused by name, in the same words; the key is gone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from adversarial import row
from harness import SessionAbortedEvent, SessionReleased, tamper

pytest.importorskip("tenseal.sealapi")

from homomorphic import (
    REFUSED,
    SUM_BYTES,
    altered,
    on_release,
    refused_by_all,
    same_release,
    session,
    with_plane,
    world_of,
)

from secure.errors import InputError
from secure.homomorphic.plane import HomomorphicServer, HomomorphicSilo
from secure.homomorphic.scheme import DEGREE, GroupKey, Scheme
from secure.messages import Abort, Piece, Reveal
from secure.verified import PRIME, decode_tags, encode_tags

PROFILES = pytest.mark.parametrize("profile", ["standard", "compact"])


def plus(packed, slots, index=0):
    """Add plaintext to one of the ciphertexts, as a server can."""
    scheme = Scheme()
    item = scheme.load(memoryview(packed[index]))
    scheme.add_plain(item, slots)
    return [*packed[:index], scheme.save(item, SUM_BYTES), *packed[index + 1 :]]


def one_slot(number, slot=0):
    slots = np.zeros(DEGREE, dtype=np.int64)
    slots[slot] = number
    return slots


def combined(packed, others, method="add"):
    """Ciphertext by ciphertext."""
    scheme, result = Scheme(), []
    for one, other in zip(packed, others, strict=True):
        item = scheme.load(memoryview(one))
        getattr(scheme, method)(item, scheme.load(memoryview(other)))
        result.append(scheme.save(item, SUM_BYTES))
    return result


def doubled(message, packed):
    """Everything that the server has, twice: scalars and tags too."""
    scalars = (2 * np.frombuffer(message.scalars, "<i8")).tobytes()
    tags = encode_tags([2 * tag % PRIME for tag in decode_tags(message.tags)])
    return replace(message, scalars=scalars, tags=tags), combined(packed, packed)


def foreign(message, packed):
    """Well-formed ciphertexts under a key of somebody else's."""
    scheme = Scheme()
    key = GroupKey(scheme, bytes(64))
    others = []
    for index in range(len(packed)):
        item = scheme.load(memoryview(key.encrypt(one_slot(index))))
        others.append(scheme.save(item, SUM_BYTES))
    return message, others


def bit_flip(place, bit=0):
    def change(message, packed):
        data = bytearray(packed[1])
        data[place] ^= 1 << bit
        return message, [packed[0], bytes(data), *packed[2:]]

    return change


def scalar(place, delta):
    def change(message, packed):
        words = np.frombuffer(message.scalars, "<i8").copy()
        words[place] += delta
        return replace(message, scalars=words.tobytes()), packed

    return change


def noisy(message, packed):
    """Added to itself until the noise has eaten the budget; what it holds is wrong already."""
    for _ in range(11):
        packed = combined(packed, packed)
    return message, packed


ALTERATIONS = {
    "a constant added to every coordinate": lambda m, p: (m, plus(p, np.ones(DEGREE, dtype=np.int64))),
    "one step added to one coordinate": lambda m, p: (m, plus(p, one_slot(1, 17), 1)),
    "a step added where padding is": lambda m, p: (m, plus(p, one_slot(1, DEGREE - 1), -1 % len(p))),
    "half of the modulus added": lambda m, p: (m, plus(p, one_slot(1 << 39))),
    "the sum doubled": doubled,
    "the ciphertexts doubled": lambda m, p: (m, combined(p, p)),
    "one ciphertext added to the next": lambda m, p: (m, [p[0], *combined(p[1:2], p[:1]), *p[2:]]),
    "two ciphertexts swapped": lambda m, p: (m, [p[1], p[0], *p[2:]]),
    "one ciphertext in the place of all": lambda m, p: (m, [p[0]] * len(p)),
    "ciphertexts under another key": foreign,
    "noise beyond the budget": noisy,
    "a bit flipped in the length": bit_flip(1),
    "a bit flipped in SEAL's header": bit_flip(6),
    "a bit flipped behind the end": bit_flip(SUM_BYTES - 1),
    "no ciphertexts": lambda m, p: (m, [bytes(SUM_BYTES)] * len(p)),
    "a metric altered": scalar(0, 1),
    "a metric beyond its bound": scalar(0, 1 << 60),
    "the clipped magnitude altered": scalar(-1, 10),
    "tags altered": lambda m, p: (replace(m, tags=encode_tags([1, 2])), p),
    "tags left out": lambda m, p: (replace(m, tags=b""), p),
}


@row("ciphertexts", "altered-release")
@PROFILES
@pytest.mark.parametrize("what", ALTERATIONS)
def test_an_altered_release_is_refused_in_one_voice(what, profile):
    run = session(world_of(4, max_drops=0), profile=profile)
    run.on_send = on_release(ALTERATIONS[what])
    run.go()
    assert isinstance(run.server_outcome, SessionReleased), "the server itself sees nothing wrong"
    refused_by_all(run)
    said = {payload for sender, _, payload in run.sent if sender != 0 and payload in run.bytes_of(Abort)}
    assert len(said) == 1, "the server hears the same from everybody, whatever failed"


@row("ciphertexts")
@pytest.mark.slow
def test_a_flipped_bit_is_noticed_wherever_it_matters():
    """A ciphertext's low bits are noise and may change without a trace: the sum is then exact. It is never wrong."""
    places, exact = np.random.default_rng().integers(20, 29_000, 24), session(world_of(4, max_drops=0)).go()
    refused = 0
    for place in places.tolist():
        run = session(world_of(4, max_drops=0))
        run.on_send = on_release(bit_flip(place, place % 8))
        run.go()
        if isinstance(run.outcome[1], SessionReleased):
            same_release(run, exact)
        else:
            refused_by_all(run)
            refused += 1
    assert refused >= 8, "four of five bits are beyond the noise"


@row("ciphertexts", "altered-release")
def test_a_release_altered_for_one_silo_is_refused_by_that_one():
    run = session()
    run.on_send = on_release(ALTERATIONS["one step added to one coordinate"], receivers=(4,))
    run.go()
    assert run.outcome[4].reason == REFUSED
    assert all(isinstance(run.outcome[silo], SessionReleased) for silo in (1, 2, 3, 5, 6))


@row("ciphertexts")
def test_the_alterations_are_what_is_refused():
    """The same machinery without an alteration changes nothing."""
    run, plain = session(), session(backend="masked").go()
    run.on_send = on_release(lambda message, packed: (message, plus(packed, one_slot(0))))
    same_release(run.go(), plain)


@row("ciphertexts")
def test_without_its_tags_an_added_constant_would_be_believed(monkeypatch):
    """It decrypts without any error and leaves the noise as it was: the tags are what notices."""
    monkeypatch.setattr(HomomorphicSilo, "_check_tags", lambda *_: None)
    run, plain = session(), session(backend="masked").go()
    run.on_send = on_release(ALTERATIONS["a constant added to every coordinate"])
    run.go()
    moved = run.outcome[1].aggregate.values - plain.outcome[1].aggregate.values
    assert (moved[:DEGREE] == 1).all()
    assert not moved[DEGREE:].any()


@row("ciphertexts")
def test_a_secret_key_in_the_servers_hands():
    params = world_of().params(backend="homomorphic")
    with pytest.raises(InputError, match=r"secret key.*refuses to start"):
        HomomorphicServer(params, GroupKey(Scheme(), bytes(64)))


# --- silos that send something else -----------------------------------------------------------------------------------


def other_key(packed):
    """Well-formed, but under a key of its own."""
    return [GroupKey(Scheme(), bytes(64)).encrypt(one_slot(5)) for _ in packed]


@row("ciphertexts")
@pytest.mark.parametrize("liar", [1, 4, 6])
def test_one_silos_ciphertexts_under_another_key_spoil_the_sum_and_nothing_else(liar):
    """Mixed keys: nobody can read the sum, least of all the server; the session ends, the models stay."""
    run = with_plane(session(), liar, altered(other_key))
    refused_by_all(run.go())


@row("ciphertexts")
@pytest.mark.parametrize("change", [
    lambda p: [p[1], p[0], *p[2:]],
    lambda p: [p[0]] * len(p),
], ids=["swapped", "repeated"])  # fmt: skip
def test_a_silo_that_swaps_its_own_ciphertexts_is_noticed(change):
    refused_by_all(with_plane(session(), 3, altered(change)).go())


MALFORMED = {
    "zeros": lambda p: [bytes(len(one)) for one in p],
    "noise": lambda p: [b"\x3b\x28" + bytes(range(256)) * 59 + bytes(254) for _ in p],
    "the second of three": lambda p: [p[0], bytes(len(p[1])), *p[2:]],
    "the last": lambda p: [*p[:-1], b"\xff" * len(p[-1])],
    "something behind the last": lambda p: [*p[:-1], p[-1][:-1] + b"\1"],
}


@row("ciphertexts")
@pytest.mark.parametrize("liar", [1, 3, 6])
@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_upload_drops_its_silo_and_leaves_the_sum_whole(what, liar):
    """Whether it comes first, in between or last: whatever was added of it is taken out again."""
    run = with_plane(session(), liar, altered(MALFORMED[what])).go()
    assert run.aggregate.survivors == tuple(silo for silo in range(1, 7) if silo != liar)
    assert any(silo == liar and "ciphertexts" in reason for silo, reason in run.server.complaints)
    honest = session(backend="masked")
    honest.silos[liar].submit = lambda *_: ()
    honest.go()
    for silo in run.aggregate.survivors:
        assert run.outcome[silo].aggregate.values.tobytes() == honest.outcome[silo].aggregate.values.tobytes()
    assert isinstance(run.outcome[liar], SessionAbortedEvent)


@row("ciphertexts")
def test_too_many_malformed_uploads_end_the_session():
    run = session()
    for liar in (2, 5):
        with_plane(run, liar, altered(MALFORMED["the last"]))
    run.go()
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert not run.bytes_of(Reveal)


@row("ciphertexts")
def test_a_piece_altered_in_transit_is_refused_before_anybody_reads_it():
    def flip(message):
        data = bytearray(message.data)
        data[len(data) // 2] ^= 4
        return replace(message, data=bytes(data))

    run = session()
    run.on_send = tamper(Piece, lambda m: flip(m) if m.index == 2 else m, silo=3)
    run.go()
    assert 3 not in run.aggregate.survivors
    assert any("altered on its way" in reason for silo, reason in run.server.complaints if silo == 3)


@row("ciphertexts", "replay")
def test_last_rounds_ciphertexts_are_no_upload_of_this_one():
    """A silo that sends what it sent before: another session's key, so the sum does not open."""
    world = world_of()
    kept = []
    first = with_plane(session(world), 3, altered(lambda packed: kept.append(packed) or packed)).go()
    assert isinstance(first.server_outcome, SessionReleased)
    second = session(world, round=1, start_digest=b"t" * 32)
    refused_by_all(with_plane(second, 3, altered(lambda packed: kept[0])).go())
