"""Sessions of the homomorphic back-end beside the masked one, and hands on what a server sends on."""

from __future__ import annotations

from dataclasses import replace

from harness import SERVER, Drive, SessionAbortedEvent, SessionReleased, World

from secure.codec import decode, encode, peek_kind
from secure.errors import InputError
from secure.homomorphic.plane import REFUSED, HomomorphicSilo
from secure.homomorphic.scheme import FRESH_BYTES, SUM_BYTES, Scheme
from secure.messages import Release
from secure.types import Block, MetricSpec, Rules, StatisticSpec, VectorSpec

LIMIT = 1 << 24

WIDE = VectorSpec(
    2,
    (Block("vae.0", 3000, 8.0, 0), Block("vae.1", 2500, 8.0, 1), Block("expert.1", 333, 1.0, 1)),
    (MetricSpec("loss", 1e6, 1e-3), MetricSpec("hits.1", 1e4, 1.0, 1)),
    (StatisticSpec("mean.0", 100.0, 1e-6),),
)
"""Three ciphertexts in profile standard, two in profile compact; the last one with padding."""


def world_of(silos=6, **rules):
    """A federation that may use both back-ends."""
    return World(range(1, silos + 1), rules=Rules(**rules), backends=("masked", "homomorphic"))


def session(world=None, *, backend="homomorphic", spec=WIDE, profile="standard", data=None, **changes):
    """One session, not yet begun. A silo whose vector is refused withholds."""
    world = world or world_of()
    params = world.params(backend=backend, spec=replace(spec, profile=profile), piece_bytes=4096, **changes)
    run = Drive(world, params, data=data)
    for silo in run.silos.values():
        silo.submit = withholding(silo.submit)
    return run


def withholding(submit):
    def wrapped(vector, metrics):
        try:
            return submit(vector, metrics)
        except InputError:
            return ()

    return wrapped


def with_plane(run, silo, plane_class):
    """Give one silo a data plane of another class."""
    scheme = Scheme()
    run.silos[silo]._plane_of = lambda params: plane_class(params, scheme)
    return run


class Altered(HomomorphicSilo):
    """A silo that sends something else than it should: ``change(ciphertexts) -> ciphertexts``."""

    change = staticmethod(lambda packed: packed)

    def _parts(self, *arguments):
        *packed, tail = super()._parts(*arguments)
        yield from type(self).change(packed)
        yield tail


def altered(change):
    """Such a class."""
    return type("AlteredSilo", (Altered,), {"change": staticmethod(change)})


def cut(values, size=SUM_BYTES):
    """Ciphertexts in a row."""
    data = bytes(values)
    return [data[i : i + size] for i in range(0, len(data), size)]


def on_release(change, receivers=None):
    """Hook: ``change(message, ciphertexts) -> (message, ciphertexts)`` of every release, for these silos."""

    def hook(sender, receiver, payload):
        wanted = receivers is None or receiver in receivers
        if sender != SERVER or peek_kind(payload) != Release.KIND or not wanted:
            return [payload]
        message = decode(payload, Release, limit=LIMIT)
        changed, packed = change(message, cut(message.values))
        return [encode(replace(changed, values=b"".join(packed)))]

    return hook


def refused_by_all(run):
    """Every silo says the same words, and nothing is left of the session."""
    for silo, event in run.outcome.items():
        assert isinstance(event, SessionAbortedEvent), (silo, event)
        assert event.reason == REFUSED
        assert event.culprits == ()
        assert run.silos[silo]._shared == b""
        assert run.silos[silo]._plane is None
    assert set(run.outcome) == set(run.params.cohort)


def same_release(one, two):
    """Both sessions released the same sum, to the bit, to every silo that is alive."""
    for silo in one.params.cohort:
        assert type(one.outcome.get(silo)) is type(two.outcome.get(silo)), silo
        if isinstance(one.outcome.get(silo), SessionReleased):
            first, second = one.outcome[silo].aggregate, two.outcome[silo].aggregate
            assert first.values.dtype == second.values.dtype
            assert first.values.tobytes() == second.values.tobytes()
            assert (first.open, first.cohort, first.survivors) == (second.open, second.cohort, second.survivors)
            assert (first.metrics, first.clipped_share) == (second.metrics, second.clipped_share)


__all__ = [
    "FRESH_BYTES",
    "REFUSED",
    "SUM_BYTES",
    "WIDE",
    "altered",
    "cut",
    "on_release",
    "refused_by_all",
    "same_release",
    "session",
    "with_plane",
    "world_of",
]
