"""The nouns of the protocol: ids, blocks, vectors, session parameters, totals, aggregates.

All are frozen. Nothing here does cryptography or I/O.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

SiloId = int
"""A silo's number in the roster, 1 … 65535. Also its Shamir abscissa, hence never zero."""

Backend = Literal["none", "masked", "homomorphic"]

Profile = Literal["standard", "compact"]
"""How finely coordinates are rounded: 2^29 steps a clip, or 2^18, of which two fit one slot of a ciphertext."""


def _digest(label: str, *fields: object) -> bytes:
    """SHA-256 over a label and the ``repr`` of plain values, each with its length in front."""
    hasher = hashlib.sha256()
    for item in (label, *fields):
        data = item if isinstance(item, bytes) else repr(item).encode()
        hasher.update(len(data).to_bytes(8, "big") + data)
    return hasher.digest()


@dataclass(frozen=True)
class Block:
    """A run of coordinates of one component that share a clip.

    Attributes:
        name: for people and digests, e.g. ``"vae.0/encoder.weight"``.
        length: number of coordinates, ≥ 0.
        clip: largest absolute value a coordinate may have after weighting (same unit as the parameters).
        component: the component whose gate opens or closes this block, 0 … M−1.
    """

    name: str
    length: int
    clip: float
    component: int


@dataclass(frozen=True)
class MetricSpec:
    """One securely summed scalar that the *server* learns, as a sum over the survivors.

    Attributes:
        name: e.g. ``"vae_loss_sum"``.
        bound: largest absolute value one silo may contribute; larger values are clipped and counted.
        resolution: size of one fixed-point step (same unit as the metric).
        component: its gate, or ``None`` for metrics that do not depend on one component.
    """

    name: str
    bound: float
    resolution: float
    component: int | None = None


@dataclass(frozen=True)
class StatisticSpec:
    """One securely summed scalar that only the *silos* learn (exchanged with the totals)."""

    name: str
    bound: float
    resolution: float


@dataclass(frozen=True)
class VectorSpec:
    """The agreed layout of one upload: order, lengths, clips, metrics and statistics.

    ``component`` of the blocks must lie in 0 … ``components`` − 1. All back-ends round alike in one ``profile``.
    """

    components: int
    blocks: tuple[Block, ...]
    metrics: tuple[MetricSpec, ...] = ()
    statistics: tuple[StatisticSpec, ...] = ()
    profile: Profile = "standard"

    @property
    def length(self) -> int:
        """Number of coordinates of the flat float32 vector."""
        return sum(block.length for block in self.blocks)

    def digest(self) -> bytes:
        """32-byte schema digest: equal iff order, names, lengths, clips, metrics, statistics and profile are equal."""
        profile = () if self.profile == "standard" else (self.profile,)
        return _digest("fedgmi/schema/1", self.components, self.blocks, self.metrics, self.statistics, *profile)


@dataclass(frozen=True)
class Rules:
    """What a silo insists on. A proposal must be at least as strict, field by field, as the local policy's rules.

    Attributes:
        colluders: silos assumed to side with the server (c).
        max_drops: silos that may vanish between "ready" and unmasking without discarding the round.
        min_contributors: holders a component needs before its sum is released (by organisation).
        min_samples: size classes below this count as zero.
        w_max: largest share of a component's released weight one silo may have.
        verified_sums: whether uploads carry the two affine tags that let silos check the sum.
    """

    colluders: int = 1
    max_drops: int = 1
    min_contributors: int = 4
    min_samples: int = 8
    w_max: float = 0.5
    verified_sums: bool = False

    def gate(self) -> int:
        """Holders that open a component: max(min_contributors, max_drops + c + 2)."""
        return max(self.min_contributors, self.max_drops + self.colluders + 2)


@dataclass(frozen=True)
class SessionParams:
    """The proposal: everything that the silos of one session must agree on before any key is made.

    Attributes:
        run_id: names the run, the same on all parties.
        phase: ``"candidates"``, ``"survey"``, ``"warmup"``, ``"rounds"`` …: chosen by the caller.
        round: round within the phase, from 0.
        attempt: repeats of this round, from 0; (phase index, round, attempt) only ever grows on a silo.
        group: number of the cohort when several sessions of one round run side by side (disjoint), else 0.
        backend: which data plane.
        cohort: the ready silos, ascending, distinct.
        spec: layout of the upload. With ``survey`` no vector is uploaded.
        start_digest: 32-byte digest of all starting models (VAEs and experts).
        config_digest: 32-byte digest of the run's agreed configuration.
        roster_digest: 32 bytes; zeros with backend ``none``.
        rules: gate, drops, colluders.
        survey: the session ends once the silos know the totals; nothing is uploaded or released.
        piece_bytes: size of one authenticated upload piece.
    """

    run_id: str
    phase: str
    round: int
    attempt: int
    backend: Backend
    cohort: tuple[SiloId, ...]
    spec: VectorSpec
    start_digest: bytes
    config_digest: bytes
    roster_digest: bytes = bytes(32)
    rules: Rules = field(default_factory=Rules)
    group: int = 0
    survey: bool = False
    piece_bytes: int = 1 << 18


@dataclass(frozen=True, repr=False)
class Contribution:
    """What one silo brings to the totals. Its printed form hides the values.

    Attributes:
        samples: per component n_i^j (or R_i^j · n_i), exact; rounded to a size class before it is shared.
        statistics: one value per ``StatisticSpec``.
    """

    samples: tuple[float, ...]
    statistics: tuple[float, ...] = ()

    def __repr__(self) -> str:
        return f"Contribution(components={len(self.samples)}, statistics={len(self.statistics)}, values hidden)"


@dataclass(frozen=True, repr=False)
class Totals:
    """What the silos (never the server) learn about the cohort. Its printed form hides the values.

    Attributes:
        weights: N^j, sum of size classes per component.
        holders: H^j, number of contributing organisations per component.
        statistics: sum over the cohort of each statistic.
        contributors: number of silos whose statistics are in the sum (the cohort).
        open: which components passed the gate.
        share: this silo's weight per component, class / N^j, held to w_max of what all release together
            (``gate.capped_share``); zero where closed or not held.
    """

    weights: tuple[float, ...]
    holders: tuple[int, ...]
    statistics: tuple[float, ...]
    contributors: int
    open: tuple[bool, ...]
    share: tuple[float, ...]

    def __repr__(self) -> str:
        return f"Totals(components={len(self.open)}, open={self.open}, values hidden)"


@dataclass(frozen=True)
class Aggregate:
    """The released sum.

    Attributes:
        spec: its layout.
        values: fixed-point little-endian ``int32`` or ``float32`` (backend ``none``), shape (spec.length,). Empty
            on the server with back-end ``homomorphic``: see ``sealed``.
        open: which components are in it; coordinates of closed ones are zero.
        cohort, survivors: silo ids, ascending.
        metrics: sum over the survivors of each metric, by name (closed components: 0).
        clipped_share: upper bound on the share of coordinates that were clipped, from its order of magnitude.
        sealed: the sum as ciphertexts that only the session's silos could open, and only within the session: all that
            the server has with back-end ``homomorphic``. Empty wherever ``values`` can be read.
    """

    spec: VectorSpec
    values: npt.NDArray[np.int32] | npt.NDArray[np.float32]
    open: tuple[bool, ...]
    cohort: tuple[SiloId, ...]
    survivors: tuple[SiloId, ...]
    metrics: dict[str, float]
    clipped_share: float = 0.0
    sealed: bytes | memoryview = field(default=b"", repr=False)

    @property
    def is_sealed(self) -> bool:
        """Whether this party cannot read the sum."""
        return bool(self.sealed)

    @property
    def complete(self) -> bool:
        """Whether every silo of the cohort is in the sum (metrics of partial rounds are kept out of early stopping)."""
        return self.cohort == self.survivors
