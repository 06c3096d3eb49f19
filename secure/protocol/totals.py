"""Silo-only totals: sums over the cohort of size classes, holders and statistics, by Shamir shares (step 2).

Every silo (a *dealer*) splits its numbers among all silos (*holders*). A holder adds up what it holds, number by
number, and sends the sums, sealed, to its peers; any t of these sub-sums give everybody the totals. The server sees
neither.

**Redundancy.** Totals are split with threshold T ≤ t − c, so that t sub-sums hold c more points than the polynomial
needs. Of t sub-sums at least T come from honest holders; they determine the polynomial, and a lying holder's point
lies off it, which every silo notices. With threshold t, one liar could move the totals, and open a gate, unseen.

**One holder, one count; no class below zero or above 2^20.** The gate counts holders, so a dealer must not be able to
say "I am three holders". Weights follow from the sum of classes, so it must not deal a negative class either: the sum
could be made to equal the class of all silos but one, whose update would then stand alone. So a dealer splits bits,
b_1 … b_L: an indicator for each component and the binary digits of its class. It proves, without showing which, that
each is 0 or 1 (a fully linear proof: Boneh, Boyle, Corrigan-Gibbs, Gilboa, Ishai, "Zero-Knowledge Proofs on
Secret-Shared Data via Fully Linear PCPs", CRYPTO 2019):

* f is the polynomial of degree L with f(i) = b_i and f(0) = u, u uniform;
* f · (f − 1) vanishes at 1 … L, hence equals V · g with V = Π (X − i) and g of degree L;
* the dealer also splits u and g(−1) … g(−L − 1);
* at a point r, drawn by hashing everything that was dealt, the holders open f(r) and g(r), both linear in what they
  hold, and everybody checks f(r) · (f(r) − 1) = V(r) · g(r). A false claim passes with probability ≤ 2L / 2^127; f(r)
  is uniform because of u, and g(r) follows from it, so nothing is learned.

**One organisation, one count.** Only the indicators of each organisation's representative (its lowest id in the cohort)
are added. This can undercount an organisation whose representative holds nothing of a component, never overcount;
a vector with a slot for each organisation would show the silos who holds what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from secure.errors import BlameError, CapacityError, ProtocolError
from secure.fixedpoint import decode_statistic, encode_statistic, statistic_width
from secure.gate import MAX_CLASS, capped_share, open_components
from secure.keys import RandomBytes, _Secretive
from secure.protocol.field import BITS, ELEMENT_BYTES, PRIME, dot, encoded, inverses, is_codeword, uniform, weights
from secure.protocol.proposal import digest
from secure.types import SessionParams, SiloId, Totals, VectorSpec

CLASS_BITS = 20
"""Binary digits of a size class: ``gate.MAX_CLASS`` fits."""


@dataclass(frozen=True)
class Layout:
    """Order of one dealer's elements: M indicators, M · 20 digits of classes (lowest first), u, g, S statistics."""

    components: int
    statistics: int

    @classmethod
    def of(cls, spec: VectorSpec) -> Layout:
        """The layout of an upload's totals."""
        return cls(spec.components, len(spec.statistics))

    @property
    def bits(self) -> int:
        """L: elements that are 0 or 1."""
        return self.components * (1 + CLASS_BITS)

    @property
    def proof(self) -> int:
        """Elements that the proof touches: bits, u and L + 1 values of g."""
        return 2 * self.bits + 2

    @property
    def size(self) -> int:
        """Elements of one dealer."""
        return self.proof + self.statistics

    @property
    def sums(self) -> int:
        """Elements of one sub-sum: holders, weights, statistics."""
        return 2 * self.components + self.statistics

    @property
    def share_bytes(self) -> int:
        """Bytes of one holder's shares."""
        return ELEMENT_BYTES * self.size


def check_totals_capacity(spec: VectorSpec, cohort_size: int) -> None:
    """Prove that no total can leave the field.

    Raises:
        CapacityError: names the statistic.
    """
    for item in spec.statistics:
        if statistic_width(item, cohort_size) >= BITS:
            raise CapacityError(f"statistic {item.name}: sums of {cohort_size} silos do not fit; raise its resolution")


def deal(spec: VectorSpec, classes: Sequence[int], statistics: Sequence[float], random: RandomBytes) -> list[int]:
    """A dealer's elements, in the order of ``Layout``.

    Raises:
        InputError: a statistic is NaN or infinite.
    """
    bits = [int(value > 0) for value in classes]
    for value in classes:
        bits += [value >> place & 1 for place in range(CLASS_BITS)]
    blind = uniform(1, random)[0]
    steps = [encode_statistic(item, value) for item, value in zip(spec.statistics, statistics, strict=True)]
    return [*bits, blind, *_quotient(bits, blind), *steps]


def _quotient(bits: Sequence[int], blind: int) -> list[int]:
    """g = f (f − 1) / V at −1 … −L − 1.

    f there is a sum of cached rows, those of the bits that are one, and the blind's, each with all points in its lanes.
    """
    rows = _rows(len(bits))
    total = rows[-1] * blind + sum([row * bit for row, bit in zip(rows, bits, strict=False) if bit])
    data = total.to_bytes(_ROW_LANE * (len(bits) + 1), "little")
    values = [int.from_bytes(data[i : i + _ROW_LANE], "little") for i in range(0, len(data), _ROW_LANE)]
    return [value * (value - 1) * below % PRIME for value, below in zip(values, _below(len(bits)), strict=True)]


_ROW_LANE = 34
"""Bytes: a product of two elements, and 2^17 of them."""


@lru_cache(maxsize=16)
def _rows(bits: int) -> list[int]:
    """Per value of f (at 1 … L, and at 0): its Lagrange weights for −1 … −L − 1, in lanes of one integer."""
    points = _bit_points(bits)
    columns = [weights.__wrapped__(points, at) for at in _quotient_points(bits)]
    rows = []
    for row in zip(*columns, strict=True):
        rows.append(int.from_bytes(b"".join([weight.to_bytes(_ROW_LANE, "little") for weight in row]), "little"))
    return rows


def _bit_points(bits: int) -> tuple[int, ...]:
    return (*range(1, bits + 1), 0)


def _quotient_points(bits: int) -> tuple[int, ...]:
    return tuple(range(-1, -bits - 2, -1))


def _vanishing(bits: int, at: int) -> int:
    """V(at) = Π (at − i)."""
    product = 1
    for i in range(1, bits + 1):
        product = product * (at - i) % PRIME
    return product


@lru_cache(maxsize=64)
def _below(bits: int) -> list[int]:
    """1 / V at −1 … −L − 1."""
    return inverses([_vanishing(bits, at) for at in _quotient_points(bits)])


def challenge(transcript: bytes, bits: int) -> int:
    """The point r: outside −L − 1 … L, fixed only when every dealer's shares are."""
    counter = 0
    while True:
        r = int.from_bytes(digest("totals challenge", transcript, counter.to_bytes(4, "big"))[:16], "little") & PRIME
        if bits < r < PRIME - bits - 1:
            return r
        counter += 1


@dataclass(frozen=True, repr=False)
class HolderView(_Secretive):
    """What one holder says: the sums (secret, for silos only) and the openings (public), in order of dealers."""

    sums: tuple[int, ...]
    openings: tuple[int, ...]


def add_up(layout: Layout, dealt: Mapping[SiloId, Sequence[int]], counted: Sequence[SiloId], r: int) -> HolderView:
    """A holder's sub-sums and openings.

    Args:
        dealt: dealer → that dealer's shares for this holder, the holder's own included.
        counted: dealers whose indicators count (one of each organisation).
        r: ``challenge``.
    """
    m, bits, dealers = layout.components, layout.bits, sorted(dealt)
    sums = [sum([dealt[dealer][j] for dealer in counted]) % PRIME for j in range(m)]
    columns = list(zip(*(dealt[dealer] for dealer in dealers), strict=True))
    for start in range(m, bits, CLASS_BITS):
        digits = [sum(column) for column in columns[start : start + CLASS_BITS]]
        sums.append(sum([digit << place for place, digit in enumerate(digits)]) % PRIME)
    sums += [sum(column) % PRIME for column in columns[layout.proof :]]
    at_f, at_g = weights(_bit_points(bits), r), weights(_quotient_points(bits), r)
    openings = []
    for dealer in dealers:
        shares = dealt[dealer]
        openings.append(dot(at_f, shares[: bits + 1]))
        openings.append(dot(at_g, shares[bits + 1 : layout.proof]))
    return HolderView(tuple(sums), tuple(openings))


def combine(
    layout: Layout,
    views: Mapping[SiloId, HolderView],
    dealers: Sequence[SiloId],
    threshold: int,
    r: int,
    random: RandomBytes,
) -> tuple[int, ...]:
    """Check everything and return the sums: holders, weights, statistics.

    Args:
        views: at least ``threshold`` holders' views, the silo's own included.
        dealers: the cohort, ascending.
        threshold: T.

    Raises:
        ProtocolError: a view does not lie on the others' polynomial (a holder or dealer lies; which cannot be told).
        BlameError: a dealer's bits are not all 0 or 1.
    """
    words = {holder: (*view.sums, *view.openings) for holder, view in views.items()}
    length = layout.sums + 2 * len(dealers)
    if len(words) < threshold or any(len(word) != length for word in words.values()):
        raise ProtocolError("too few sub-sums, or of the wrong length")
    mix = uniform(length, random)
    if not is_codeword({holder: dot(mix, word) for holder, word in words.items()}, threshold, random):
        raise ProtocolError("sub-sums contradict each other: a silo lied about what it holds")
    chosen = tuple(sorted(words))[:threshold]
    at_zero = weights(chosen, 0)
    columns = list(zip(*(words[holder] for holder in chosen), strict=True))
    values = [dot(at_zero, column) for column in columns]
    _check_proofs(layout, values[layout.sums :], dealers, r)
    return tuple(values[: layout.sums])


def _check_proofs(layout: Layout, opened: Sequence[int], dealers: Sequence[SiloId], r: int) -> None:
    vanishing = _vanishing(layout.bits, r)
    for dealer, f, g in zip(dealers, opened[::2], opened[1::2], strict=True):
        if (f * (f - 1) - vanishing * g) % PRIME:
            raise BlameError(dealer, "its proof that it counts at most once, with a class in range, is false")


def read_totals(params: SessionParams, sums: Sequence[int], classes: Sequence[int], counted: int) -> Totals:
    """The silo's totals: gate, capped shares, statistics.

    What is refused here depends on the sums alone, which all silos share: if a silo's own class had a say, a liar's
    negative class would show, by who aborts, who stands above a threshold.

    Args:
        sums: from ``combine``.
        classes: this silo's own size classes.
        counted: number of dealers whose indicators were added.

    Raises:
        ProtocolError: totals that no honest cohort can have.
    """
    spec, rules, cohort = params.spec, params.rules, params.cohort
    m = spec.components
    holders, totals, steps = sums[:m], sums[m : 2 * m], sums[2 * m :]
    if any(count > counted for count in holders) or any(total > MAX_CLASS * len(cohort) for total in totals):
        raise ProtocolError("totals are out of range: a silo lied about its own")
    for item, step in zip(spec.statistics, steps, strict=True):
        if step >> statistic_width(item, len(cohort)):
            raise ProtocolError("totals are out of range: a silo lied about its own")
    opened = open_components(holders, rules)
    return Totals(
        weights=tuple(float(total) for total in totals),
        holders=tuple(holders),
        statistics=tuple(
            decode_statistic(item, step, len(cohort)) for item, step in zip(spec.statistics, steps, strict=True)
        ),
        contributors=len(cohort),
        open=opened,
        share=tuple(
            capped_share(own, total, rules.w_max) if is_open else 0.0
            for own, total, is_open in zip(classes, totals, opened, strict=True)
        ),
    )


def totals_bytes(totals: Totals, sums: Sequence[int]) -> bytes:
    """Everything about the totals that silos share (their own part left out), for the keyed digest of step 4."""
    return encoded(sums) + bytes(totals.open)
