"""Homomorphic sessions: the masked back-end's sums, bit for bit, whoever dies when; a server that reads nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import oracle
import pytest
from adversarial import reachable, until
from harness import (
    SERVER,
    Drive,
    SessionAbortedEvent,
    SessionReleased,
    SessionSurveyed,
    World,
    chain,
    die_after,
    die_before,
    inputs,
)
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tenseal.sealapi")

from homomorphic import WIDE, cut, same_release, session, world_of
from test_properties import RELAXED, STEPS, layouts, rules_for, values_of

from secure.api import decode_aggregate, dequantise, encode_aggregate
from secure.errors import InputError
from secure.gate import feasibility
from secure.homomorphic.plane import HomomorphicServer, group_key
from secure.homomorphic.scheme import DEGREE, FRESH_BYTES, PLAIN_MODULUS, GroupKey, Scheme
from secure.messages import Piece, Receipt, Release, Reveal, Uploaded

PROFILES = pytest.mark.parametrize("profile", ["standard", "compact"])


def both(data=None, hooks=lambda run: (), world=world_of, **options):
    """The same session with either back-end."""
    runs = []
    for backend in ("homomorphic", "masked"):
        run = session(world(), backend=backend, data=data, **options)
        run.on_send = chain(*hooks(run))
        runs.append(run.go())
    return runs


@PROFILES
def test_equals_the_masked_backend_bit_for_bit(profile):
    encrypted, masked = both(profile=profile)
    assert len(encrypted.outcome) == 6
    assert all(isinstance(event, SessionReleased) for event in encrypted.outcome.values())
    same_release(encrypted, masked)
    assert masked.aggregate.metrics == encrypted.aggregate.metrics


def test_equals_the_oracle():
    run = session().go()
    values, metrics, clipped, opened = oracle.release(
        run.params, run.samples, run.statistics, run.vectors, run.metrics, run.params.cohort
    )
    aggregate = run.outcome[4].aggregate
    assert aggregate.values.tobytes() == values.astype("<i4").tobytes()
    assert aggregate.metrics == pytest.approx(metrics)
    assert aggregate.clipped_share == min(1.0, clipped / (6 * WIDE.length))
    assert aggregate.open == opened


def test_the_coarse_profile_means_the_same_sum_more_coarsely():
    fine, coarse = session().go(), session(profile="compact").go()
    one, two = dequantise(fine.outcome[1].aggregate), dequantise(coarse.outcome[1].aggregate)
    assert 1e-6 < np.abs(one - two).max() <= 6 / 2 / 2**15


@pytest.mark.parametrize("silos", [3, 5, 10, pytest.param(17, marks=pytest.mark.slow)])
def test_cohorts(silos):
    rules = {"max_drops": 0 if silos == 3 else 1, "min_contributors": 3}
    encrypted, masked = both(world=lambda: world_of(silos, **rules))
    assert all(isinstance(event, SessionReleased) for event in encrypted.outcome.values())
    same_release(encrypted, masked)


@pytest.mark.parametrize("profile", ["standard", pytest.param("compact", marks=pytest.mark.slow)])
@pytest.mark.parametrize("when", [die_before, die_after])
@pytest.mark.parametrize("kind", STEPS)
def test_death_at_every_step(profile, kind, when):
    """Of any silo: all hold the group key, so no death takes it along."""
    encrypted, masked = both(profile=profile, hooks=lambda run: [when(run, kind, 3)])
    same_release(encrypted, masked)
    if kind in STEPS[:2] or (kind, when) == (Receipt, die_before):
        assert isinstance(encrypted.server_outcome, SessionAbortedEvent)
    else:
        assert isinstance(encrypted.server_outcome, SessionReleased)


@pytest.mark.slow
def test_each_silo_in_turn_may_be_the_one_that_dies():
    for dead in range(1, 7):
        encrypted, masked = both(hooks=lambda run, dead=dead: [die_after(run, Piece, dead)])
        assert dead not in encrypted.aggregate.survivors
        same_release(encrypted, masked)


def test_two_drops_of_ten():
    hooks = lambda run: [die_after(run, Piece, 2), die_before(run, Uploaded, 9)]  # noqa: E731
    encrypted, masked = both(world=lambda: world_of(10, max_drops=2), hooks=hooks)
    assert encrypted.aggregate.survivors == (1, 3, 4, 5, 6, 7, 8, 10)
    same_release(encrypted, masked)


@settings(RELAXED, max_examples=6)
@given(st.data())
def test_any_layout_rules_values_and_deaths(data):
    check_like_masked(data, 7)


@pytest.mark.slow
@settings(RELAXED, max_examples=80)
@given(st.data())
def test_any_layout_rules_values_and_deaths_at_length(data):
    check_like_masked(data, 16)


def check_like_masked(data, most):
    silos = data.draw(st.integers(3, most), "silos")
    spec = data.draw(layouts(), "layout")
    if data.draw(st.booleans(), "long"):
        spec = replace(spec, blocks=tuple(replace(b, length=60 * b.length) for b in spec.blocks))
    rules = data.draw(rules_for(silos), "rules")
    values = values_of(spec, range(1, silos + 1), data.draw(st.integers(0, 10**6), "seed"), data.draw(st.booleans()))
    deaths = data.draw(
        st.lists(
            st.tuples(st.integers(1, silos), st.sampled_from(STEPS), st.sampled_from((die_before, die_after))),
            max_size=rules.max_drops + 1,
            unique_by=lambda death: death[0],
        ),
        "deaths",
    )
    encrypted, masked = both(
        values,
        lambda run: [when(run, kind, silo) for silo, kind, when in deaths],
        lambda: World(range(1, silos + 1), rules=rules, backends=("masked", "homomorphic")),
        spec=spec,
        profile=data.draw(st.sampled_from(("standard", "compact")), "profile"),
        survey=data.draw(st.sampled_from((False, False, False, True)), "survey"),
    )
    assert type(encrypted.server_outcome) is type(masked.server_outcome)
    same_release(encrypted, masked)


@pytest.mark.slow
def test_the_largest_cohort():
    encrypted, masked = both(world=lambda: world_of(128, max_drops=2), hooks=lambda run: [die_after(run, Piece, 77)])
    assert len(encrypted.aggregate.survivors) == 127
    same_release(encrypted, masked)


def test_surveys_and_closed_gates_encrypt_nothing():
    run = session(survey=True).go()
    assert isinstance(run.server_outcome, SessionSurveyed)
    few = session(data=None)
    few.samples = dict.fromkeys(few.params.cohort, (1.0, 1.0))
    few = session(data=(few.samples, few.statistics, few.vectors, few.metrics)).go()
    assert few.server_outcome == SessionSurveyed((False, False), few.params.cohort)
    assert not few.bytes_of(Piece)


def test_closed_components_are_zeros():
    run = session()
    samples = {silo: (50.0, 50.0 if silo < 3 else 0.0) for silo in run.params.cohort}
    run = session(data=(samples, run.statistics, run.vectors, run.metrics)).go()
    aggregate = run.outcome[1].aggregate
    assert aggregate.open == (True, False)
    assert aggregate.values[:3000].any()
    assert not aggregate.values[3000:].any()
    assert aggregate.metrics["hits.1"] == 0.0


@PROFILES
def test_bytes_a_coordinate(profile):
    spec = replace(WIDE, blocks=(Block_of(40 * 4096, 0), Block_of(40 * 4096, 1)))
    run = session(world_of(4, max_drops=0), spec=spec, profile=profile).go()
    upload = sum(len(payload) for payload in run.bytes_of(Piece, 1)) / spec.length
    download = len(run.bytes_of(Release)[0]) / spec.length
    limits = (8.0, 16.0) if profile == "standard" else (4.1, 8.2)
    assert upload <= limits[0]
    assert download <= limits[1]


def Block_of(length, component):  # noqa: N802 - reads like the class it stands for
    return replace(WIDE.blocks[0], length=length, component=component)


# --- who can read what ------------------------------------------------------------------------------------------------


def test_the_server_has_ciphertexts_metrics_and_no_values():
    run = session().go()
    aggregate = run.aggregate
    assert aggregate.is_sealed
    assert len(aggregate.values) == 0
    assert bytes(aggregate.sealed) in run.bytes_of(Release)[0]
    assert aggregate.metrics == run.outcome[1].aggregate.metrics
    assert "sealed" not in repr(aggregate)
    for use in (dequantise, encode_aggregate):
        with pytest.raises(InputError, match="sealed"):
            use(aggregate)
    own = run.outcome[2].aggregate
    assert not own.is_sealed
    again = decode_aggregate(encode_aggregate(own), run.params.spec)
    assert (dequantise(again) == dequantise(own)).all()


def test_a_server_that_was_handed_a_secret_key_refuses_to_start():
    params = world_of().params(backend="homomorphic")
    with pytest.raises(InputError, match="secret key"):
        HomomorphicServer(params, GroupKey(Scheme(), bytes(64)))
    HomomorphicServer(params, Scheme())


@pytest.mark.parametrize("stage", [Uploaded, Reveal, Release])
def test_the_server_never_holds_what_opens_a_ciphertext(stage):
    """Nothing it can reach is a key of SEAL's, the group key's seed, or the silos' key; nor do they pass through it."""
    run = session()
    until(run, Uploaded)
    shared, number = run.silos[2]._shared, run.silos[2]._session
    seed = group_key_seed(shared, number)
    if stage is not Uploaded:
        run.settle()
    found = reachable(run.server, vars(run.server))
    names = {type(item).__name__ for item in found}
    assert "Scheme" in names or stage is not Uploaded
    assert not names & {"GroupKey", "SecretKey", "Decryptor", "Encryptor", "KeyGenerator"}
    blobs = [bytes(item) for item in found if isinstance(item, bytes | bytearray | memoryview)]
    for secret in (shared, seed, seed[:32]):
        assert not any(secret in blob for blob in blobs)
        assert not any(secret in payload for *_, payload in run.sent)
    assert "GroupKey" in {type(item).__name__ for item in reachable([GroupKey(Scheme(), seed)])}


def group_key_seed(shared, number):
    from secure.keys import derive

    return derive(shared, "group key", number, length=64)


def test_nothing_of_a_key_is_ever_a_file(tmp_path, monkeypatch):
    """Every file that is opened for SEAL is memory, and no key goes through one."""
    seen = []
    original = Scheme.save

    def save(self, item, room):
        seen.append(type(item).__name__)
        return original(self, item, room)

    monkeypatch.setattr(Scheme, "save", save)
    monkeypatch.chdir(tmp_path)
    run = session().go()
    assert isinstance(run.server_outcome, SessionReleased)
    assert set(seen) == {"SerializableCiphertext", "Ciphertext"}
    assert list(tmp_path.rglob("*")) == []


def ciphertexts(run, silo):
    """What a silo uploaded."""
    from adversarial import from_silos

    data = b"".join(bytes(piece.data) for piece in from_silos(run, Piece, silo))
    return cut(data[: FRESH_BYTES * 3], FRESH_BYTES)


def test_a_silo_that_opens_anothers_upload_finds_noise():
    """Also where both hold the same vector: what is beneath the encryption is uniform modulo t."""
    run = session()
    for silo in run.vectors:
        run.vectors[silo][:] = 0.001
    until(run, Uploaded)
    scheme = Scheme()
    key = group_key(scheme, run.silos[2]._shared, run.silos[2]._session)
    opened = {
        silo: np.concatenate([key.decrypt(scheme.load(memoryview(packed))) for packed in ciphertexts(run, silo)])
        for silo in run.params.cohort
    }
    for silo, slots in opened.items():
        counts = np.bincount(slots * 64 // PLAIN_MODULUS, minlength=64)
        expected = len(slots) / 64
        assert ((counts - expected) ** 2 / expected).sum() < 160  # 63 degrees of freedom
        for other in range(1, silo):
            for mixed in (slots - opened[other], slots + opened[other]):
                assert len(np.unique(mixed % PLAIN_MODULUS)) > 0.99 * len(mixed)
    total = sum(opened.values())
    assert len(np.unique(total % PLAIN_MODULUS)) > 0.99 * 3 * DEGREE, "self-masks are left until all have consented"


def test_uploads_of_silos_that_hold_nothing_look_alike():
    run = session()
    samples = {**run.samples, 4: (0.0, 0.0)}
    run = session(data=(samples, run.statistics, run.vectors, run.metrics)).go()
    sizes = {silo: [len(payload) for payload in run.bytes_of(Piece, silo)] for silo in run.params.cohort}
    assert len(set(map(tuple, sizes.values()))) == 1


def test_keys_differ_between_sessions():
    """Rounds of one federation: another κ, another key; an upload of one is noise in the other."""
    world = world_of()
    first = until(session(world), Uploaded)
    second = until(session(world, round=1, start_digest=b"t" * 32), Uploaded)
    scheme = Scheme()
    keys = [group_key(scheme, run.silos[1]._shared, run.silos[1]._session) for run in (first, second)]
    packed = scheme.load(memoryview(ciphertexts(first, 3)[0]))
    assert not (keys[0].decrypt(packed) == keys[1].decrypt(packed)).any()


# --- who refuses whom -------------------------------------------------------------------------------------------------


def test_another_version_of_seal_is_refused_by_name():
    """Its ciphertexts could not be read; said at the proposal, before anything is made."""
    run = session()
    run.silos[3]._arithmetic = "BFV 2048/51/40, SEAL 3.9"
    run.go()
    reason = run.outcome[3].reason
    assert "SEAL 3.9" in reason
    assert "the same TenSEAL" in reason
    assert run.server_outcome.culprits == (3,)


def test_another_profile_is_refused():
    world = world_of()
    params = world.params(backend="homomorphic", spec=WIDE)
    coarse = replace(params, spec=replace(WIDE, profile="compact"))
    run = Drive(world, params, expected={2: coarse}).go()
    assert "layout of the upload differs" in run.outcome[2].reason
    assert "quantiser" in run.outcome[2].reason


def test_a_policy_without_this_backend_refuses():
    world = World(range(1, 7))
    run = Drive(world, world.params(backend="homomorphic", spec=WIDE)).go()
    assert all("back-end 'homomorphic' is not allowed here" in event.reason for event in run.outcome.values())


def test_a_masked_party_and_an_encrypting_one_never_meet():
    world = world_of()
    params = world.params(backend="homomorphic", spec=WIDE)
    run = Drive(world, params, expected={5: replace(params, backend="masked")}).go()
    assert "back-end" in run.outcome[5].reason
    assert run.server_outcome.culprits == (5,)
    assert not run.bytes_of(Piece)


def test_too_coarse_on_every_silo_ends_the_session_without_a_sum():
    world, draw = world_of(), session()
    data = inputs(draw.params, scale=1e-6)
    run = session(world, profile="compact", data=data)
    told = []
    for silo in run.silos.values():
        silo.submit = lambda *arguments, submit=silo.submit: told.append(list(submit(*arguments))) or ()
    run.go()
    assert told == [[]] * 6, "every silo withholds"
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    strict = Drive(world_of(), run.params, data=data)
    with pytest.raises(InputError, match="too coarse"):
        strict.go()


def test_quorum_of_survivors_is_kept():
    hooks = lambda run: [die_after(run, Piece, silo) for silo in (1, 2)]  # noqa: E731
    encrypted, masked = both(hooks=hooks)
    assert isinstance(encrypted.server_outcome, SessionAbortedEvent)
    assert feasibility(6).quorum == 5
    same_release(encrypted, masked)
    assert SERVER not in encrypted.outcome
