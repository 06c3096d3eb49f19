"""The adversarial table: bad input, clips, masks that repeat, other back-ends, sizes of messages."""

from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import oracle
import pytest
from adversarial import from_silos, profile, row
from harness import (
    SPEC,
    Drive,
    Replay,
    SessionAbortedEvent,
    SessionReleased,
    SessionSurveyed,
    World,
    drop,
    inputs,
)
from test_session_happy import check_against_oracle

import secure.masking as masking_module
from secure.api import Contribution, dequantise, open_silo
from secure.errors import InputError
from secure.keys import derive
from secure.messages import Piece, Release, Shares, Uploaded
from secure.prg import MaskStream
from secure.protocol.dealing import pair_masks, self_masks
from secure.types import Block, MetricSpec, VectorSpec

# --- bad input --------------------------------------------------------------------------------------------------------


def spoiled(vector, how):
    vector = vector.copy()
    if how in ("nan", "inf", "-inf"):
        vector[710] = float(how)
        return vector
    return {
        "short": vector[:-1],
        "long": np.append(vector, np.float32(0)),
        "square": vector.reshape(1, -1),
        "double": vector.astype(np.float64),
        "whole": vector.astype(np.int32),
        "strided": np.repeat(vector, 2)[::2],
        "list": vector.tolist(),
    }[how]


@row("bad-input")
@pytest.mark.parametrize("how", ["nan", "inf", "-inf", "short", "long", "square", "double", "whole", "strided", "list"])
def test_bad_vectors_raise_before_masking_and_the_round_goes_on(how):
    world = World(range(1, 7))
    run = Drive(world, world.params())
    submit, refused = run.silos[3].submit, []

    def bad(vector, metrics):
        with pytest.raises(InputError) as caught:
            submit(spoiled(vector, how), metrics)
        refused.append(str(caught.value))
        return ()

    run.silos[3].submit = bad
    run.go()
    assert not run.bytes_of(Piece, 3)
    assert refused
    assert how not in ("nan", "inf", "-inf") or "vae.1" in refused[0]
    assert run.aggregate.survivors == (1, 2, 4, 5, 6)
    check_against_oracle(run)


@row("bad-input")
@pytest.mark.parametrize(
    "metrics", [{}, {"loss": 1.0}, {"loss": float("nan"), "hits.1": 0.0}, {"loss": 1.0, "hits.1": 1.0, "more": 0.0}]
)
def test_bad_metrics_and_contributions(metrics):
    world = World(range(1, 7))
    params = world.params()
    run = Drive(world, params)
    run.metrics[3] = metrics
    submit = run.silos[3].submit

    def bad(vector, scalars):
        with pytest.raises(InputError):
            submit(vector, scalars)
        return ()

    run.silos[3].submit = bad
    run.go()
    assert run.aggregate.survivors == (1, 2, 4, 5, 6)
    for held in ((1.0,), (-1.0, 1.0), (float("nan"), 1.0), (2.0**41, 1.0)):
        with pytest.raises(InputError):
            open_silo(1, params, Contribution(held, (0.0, 0.0)), credentials=world.credentials(1),
                      journal=world.journals[1], random=Replay(1))  # fmt: skip


@row("bad-input")
@pytest.mark.parametrize("change", ["order", "length", "clip", "metric", "name"])
def test_another_layout_is_refused_by_its_digest(change):
    first, second, third = SPEC.blocks
    other = {
        "order": replace(SPEC, blocks=(second, first, third)),
        "length": replace(SPEC, blocks=(replace(first, length=699), second, third)),
        "clip": replace(SPEC, blocks=(replace(first, clip=4.0), second, third)),
        "metric": replace(SPEC, metrics=(replace(SPEC.metrics[0], resolution=1e-4), SPEC.metrics[1])),
        "name": replace(SPEC, blocks=(replace(first, name="vae.9"), second, third)),
    }[change]
    world = World(range(1, 7))
    run = Drive(world, world.params(), expected={4: world.params(spec=other)}).go()
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert run.server_outcome.culprits == (4,)
    assert "layout" in run.server_outcome.reason
    assert not run.bytes_of(Shares)


# --- clips ------------------------------------------------------------------------------------------------------------


@row("clip")
@pytest.mark.parametrize("silos", [4, 13])
@pytest.mark.parametrize("size", [0.999, 1.0, 1.001, 1e30])
def test_values_at_and_beyond_the_clip_do_not_wrap(silos, size):
    """Everybody at the same corner: the sum of shares is one, so the sum stands at the clip and no further."""
    spec = VectorSpec(1, (Block("a", 64, 8.0, 0), Block("b", 64, 3.0, 0)))
    world = World(range(1, silos + 1))
    params = world.params(spec=spec)
    samples = dict.fromkeys(world.silos, (50.0,))
    signs = np.where(np.arange(128) % 2, 1.0, -1.0)
    corner = np.repeat((8.0, 3.0), 64) * signs
    vectors = {silo: (corner * size / silos).astype(np.float32) for silo in world.silos}
    run = Drive(world, params, data=(samples, dict.fromkeys(samples, ()), vectors, {silo: {} for silo in samples})).go()
    check_against_oracle(run)
    got = dequantise(run.aggregate)
    assert (np.sign(got) == signs).all()
    assert np.abs(got).max() <= 8.0 * (1 + 1e-6)
    assert size == 1.0 or (run.aggregate.clipped_share > 0) == (size > 1)


@row("clip")
def test_a_sum_beyond_the_bound_discards_the_round(monkeypatch):
    """A liar's upload far beyond its share: honest arithmetic never gets there."""
    original = masking_module._quantise

    def cheat(chunk, start, parts, room, norm):
        import inspect

        count = original(chunk, start, parts, room, norm)
        if inspect.currentframe().f_back.f_locals["keys"].silo == 3:
            room[...] = 1 << 30
        return count

    monkeypatch.setattr(masking_module, "_quantise", cheat)
    world = World(range(1, 7))
    run = Drive(world, world.params()).go()
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert "beyond clip and rounding" in run.server_outcome.reason
    assert not any(isinstance(event, SessionReleased) for event in run.outcome.values())


@row("clip")
def test_layouts_that_could_wrap_are_refused_before_round_one():
    world = World(range(1, 7))
    for spec in (
        VectorSpec(1, (Block("a", 3, 2.0**61, 0),)),
        VectorSpec(1, (Block("a", 3, 0.0, 0),)),
        VectorSpec(1, (Block("a", 3, float("nan"), 0),)),
        VectorSpec(1, (Block("a", 3, 8.0, 0),), (MetricSpec("m", 1e30, 1e-9),)),
    ):
        with pytest.raises(InputError):
            Drive(world, world.params(spec=spec), data=inputs(world.params()))


# --- masks ------------------------------------------------------------------------------------------------------------


@row("seeds")
def test_the_same_inputs_in_two_rounds_two_runs_and_under_one_generator():
    """Even a generator that repeats itself gives other streams in another round or run."""
    uploads = []
    for changes in ({}, {"round": 1}, {"run_id": "other"}, {"start_digest": b"t" * 32}, {"attempt": 1}):
        world = World(range(1, 7))
        params = world.params(**changes)
        data = inputs(world.params())
        run = Drive(world, params, data=data)
        for silo in world.silos:
            run.silos[silo]._random = Replay("again", silo)
        run.go()
        uploads.append([b"".join(bytes(m.data) for m in from_silos(run, Piece, silo)) for silo in world.silos])
    everything = [upload for one in uploads for upload in one]
    assert len(set(everything)) == len(everything)
    words = [np.frombuffer(upload[: 4 * SPEC.length], "<u4") for upload in everything]
    for index, one in enumerate(words):
        for other in words[index + 1 :]:
            assert np.count_nonzero(one == other) < 5


@row("seeds")
def test_components_of_one_model_and_silos_of_one_session_have_streams_of_their_own():
    """M identical blocks of zeros: what is sent is the masks, and no two words of the blocks agree."""
    spec = VectorSpec(4, tuple(Block(f"m{j}", 500, 8.0, j) for j in range(4)))
    world = World(range(1, 7))
    params = world.params(spec=spec)
    samples = dict.fromkeys(world.silos, (50.0,) * 4)
    vectors = dict.fromkeys(world.silos, np.zeros(2000, dtype=np.float32))
    run = Drive(world, params, data=(samples, dict.fromkeys(samples, ()), vectors, {silo: {} for silo in samples})).go()
    assert not run.aggregate.values.any()
    for silo in world.silos:
        data = b"".join(bytes(m.data) for m in from_silos(run, Piece, silo))
        blocks = np.frombuffer(data[:8000], "<u4").reshape(4, 500)
        for i in range(4):
            for j in range(i):
                assert np.count_nonzero(blocks[i] == blocks[j]) < 3
        assert len(np.unique(blocks)) > 1990


@row("seeds")
def test_known_answers_of_the_mask_stream():
    """AES-256-CTR: NIST SP 800-38A F.5.5 has another counter block, so the key stream is made here by ECB."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = bytes(range(32))
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    got = bytearray(1 << 12)
    MaskStream(key).into(got)
    blocks = {bytes(got[i : i + 16]) for i in range(0, len(got), 16)}
    decryptor = Cipher(algorithms.AES(key), modes.ECB()).decryptor()
    counters = [int.from_bytes(decryptor.update(bytes(got[i : i + 16])), "big") for i in range(0, len(got), 16)]
    assert len(blocks) == 256
    assert [after - before for before, after in itertools.pairwise(counters)] == [1] * 255
    assert encryptor.update(counters[0].to_bytes(16, "big")) == bytes(got[:16])


@row("seeds")
def test_every_derived_key_differs_by_purpose_session_and_pair():
    secret, sessions = b"k" * 32, (b"s" * 32, b"t" * 32)
    keys = [derive(secret, label, session) for session in sessions for label in ("a", "b")]
    for session in sessions:
        keys += [pair_masks(secret, session, i, j) for i in range(1, 6) for j in range(1, i)]
        keys += [self_masks(secret, session, i) for i in range(1, 6)]
    assert len(set(keys)) == len(keys)
    assert pair_masks(secret, sessions[0], 2, 5) == pair_masks(secret, sessions[0], 5, 2)


# --- back-ends --------------------------------------------------------------------------------------------------------


@row("backend")
@pytest.mark.parametrize("elsewhere", ["the silo", "the server"])
def test_another_backend_on_one_party_names_the_silo(elsewhere):
    world = World(range(1, 7))
    params = world.params()
    plain = replace(params, backend="none")
    if elsewhere == "the silo":
        run = Drive(world, params, expected={3: plain}).go()
        assert run.server_outcome.culprits == (3,)
    else:
        run = Drive(world, plain, expected=dict.fromkeys(world.silos, params)).go()
        assert run.server_outcome.culprits
    assert isinstance(run.server_outcome, SessionAbortedEvent)
    assert "back-end" in run.outcome[3].reason
    assert not run.bytes_of(Shares)
    with pytest.raises(InputError):
        open_silo(1, replace(params, backend="quantum"), Contribution((1.0, 1.0), (0.0, 0.0)),
                  credentials=world.credentials(1), journal=world.journals[1])  # fmt: skip


@row("backend")
def test_nothing_works_without_the_library():
    """A silo without ``cryptography`` cannot even import the door; nothing falls back to anything."""
    code = textwrap.dedent(
        """
        import sys
        sys.modules["cryptography"] = None
        try:
            import secure.api
        except ImportError as error:
            print("refused:", error.name or error)
        else:
            print("went on")
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "refused: cryptography" in done.stdout, done.stderr


@row("lengths")
@pytest.mark.parametrize("dropped", [None, 4])
def test_a_silo_that_contributes_nothing_looks_like_the_others(dropped):
    world = World(range(1, 8))
    params = world.params()
    samples, statistics, vectors, metrics = inputs(params)
    samples[2], statistics[2] = (0.0, 0.0), (0.0, 0.0)
    vectors[2], metrics[2] = np.zeros_like(vectors[2]), dict.fromkeys(metrics[2], 0.0)
    run = Drive(world, params, data=(samples, statistics, vectors, metrics))
    if dropped:
        run.on_send = drop(Uploaded, silo=dropped)
    run.go()
    check_against_oracle(run)
    others = [profile(run, silo) for silo in world.silos if silo not in (2, dropped)]
    assert all(profile(run, 2) == other for other in others)


@row("lengths", "size-probe")
def test_sizes_do_not_depend_on_what_is_in_them():
    profiles = set()
    for scale in (0.0, 1e-3, 1.0, 1e6):
        world = World(range(1, 7))
        params = world.params()
        samples, statistics, vectors, metrics = inputs(params)
        samples = {s: (8.0 + scale * 1e5 * s, 2.0**39 if scale else 8.0) for s in samples}
        statistics = {s: (scale * s, -scale) for s in samples}
        vectors = {s: (v * np.float32(scale)) for s, v in vectors.items()}
        metrics = {s: dict.fromkeys(m, scale) for s, m in metrics.items()}
        run = Drive(world, params, data=(samples, statistics, vectors, metrics)).go()
        assert isinstance(run.server_outcome, SessionReleased | SessionSurveyed)
        profiles |= {str(profile(run, silo)) for silo in world.silos}
        profiles.add(str([(k, n) for k, n in profile(run, 1)]))
        sizes = {len(p) for p in run.bytes_of(Release)}
        assert len(sizes) == 1
    assert len(profiles) == 1


@row("drops")
def test_the_oracle_is_another_implementation():
    """The sums above are compared with plain integer arithmetic that shares no code with the package."""
    import inspect

    assert "import secure" not in inspect.getsource(oracle)
