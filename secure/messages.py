"""Every message of the protocol, field by field.

Kinds 1 – 19 are the masked protocol's (a homomorphic back-end reuses them), 32 – 34 belong to back-end ``none``, 48 is
a released aggregate for silos that were not in the cohort. "Signed" means: by the sender's long-term Ed25519 key, over
the message's kind and all other fields. Sizes: K silos, M components, S statistics.

    step  kind              from → to        what
    ────  ────              ─────────        ────
    0     1  Proposal       server → all     what everybody must agree on, signed by the server
    1     2  Advert         silo → server    fresh keys, commitment to the self-mask seed
    1     3  Adverts        server → all     all K adverts
    2     4  Shares         silo → server    sealed packet for each peer, hashes of what is in them
    2     5  Packets        server → silo    the packets for this silo, all dealers' hashes
    2     6  Receipt        silo → server    "I hold K good packets of this transcript"
    2     7  Receipts       server → all     all K receipts
    2     8  SubSums        silo → server    sealed sums of the totals' shares; openings of the holders' proofs
    2     9  SubSumsRelay   server → silo    those for this silo
    2    10  Opened         silo → server    which components are open; ends a survey
    3    11  Piece          silo → server    one piece of the upload
    3    12  Uploaded       silo → server    end of the upload: scalars, digest of the whole
    4    13  Survivors      server → all     the survivors and their ``Uploaded`` receipts
    4    14  Consent        silo → server    signature under survivors, receipts and (keyed) totals
    5    15  UnmaskRequest  server → all     at least q consents
    5    16  Reveal         silo → server    one share per peer
    5    17  Release        server → all     the sum
    any  18  Abort          both             the end, with its reason
    any  19  Void           silo → server    "I released no share of this session and hold none any more"
"""

from __future__ import annotations

from dataclasses import dataclass

from secure.codec import (
    Message,
    Signed,
    blob,
    blobs,
    bulk,
    fixed,
    flag,
    flags,
    integer,
    integers,
    real,
    reals,
    silo_id,
    silo_ids,
    text,
)

MOST_SILOS = 128
MOST_COMPONENTS = 64
MOST_SCALARS = 256
HASH = 32
SIGNATURE = 64
COUNTER = 1 << 31
PACKET_LIMIT = 64 << 10
"""Largest sealed packet in bytes: 64 components and 256 statistics fit."""


@dataclass(frozen=True, repr=False)
class Proposal(Signed, kind=1):
    """Step 0. All of ``SessionParams``, the numbers derived from it, and the server's one-time key.

    ``spec`` and the three other digests stand for what the silo knows already. ``voids`` are encoded ``Void`` messages
    of an earlier session from the same starting point, which let a silo forget the survivors it signed there.
    """

    run_id: str = text(128)
    phase: str = text(64)
    round: int = integer(0, COUNTER)
    attempt: int = integer(0, COUNTER)
    group: int = integer(0, COUNTER)
    backend: str = text(16)
    cohort: tuple[int, ...] = silo_ids(MOST_SILOS)
    spec: bytes = fixed(HASH)
    start: bytes = fixed(HASH)
    config: bytes = fixed(HASH)
    roster: bytes = fixed(HASH)
    colluders: int = integer(0, MOST_SILOS)
    max_drops: int = integer(0, MOST_SILOS)
    min_contributors: int = integer(0, 65535)
    min_samples: int = integer(0, COUNTER)
    w_max: float = real()
    verified_sums: bool = flag()
    threshold: int = integer(0, MOST_SILOS)
    quorum: int = integer(0, MOST_SILOS)
    quantiser: str = text(64)
    survey: bool = flag()
    piece_bytes: int = integer(1, 1 << 30)
    server_key: bytes = fixed(32)
    voids: tuple[bytes, ...] = blobs(MOST_SILOS, 640)
    signature: bytes = blob(SIGNATURE)


@dataclass(frozen=True, repr=False)
class Advert(Signed, kind=2):
    """Step 1. ``proposal`` is the hash of the proposal this silo agreed to; ``commitment`` is to its self-mask seed."""

    proposal: bytes = fixed(HASH)
    silo: int = silo_id()
    nonce: bytes = fixed(32)
    sealing_key: bytes = fixed(32)
    masking_key: bytes = fixed(32)
    commitment: bytes = fixed(HASH)
    signature: bytes = blob(SIGNATURE)


@dataclass(frozen=True, repr=False)
class Adverts(Message, kind=3):
    """Step 1, the same bytes for all: the encoded adverts of the whole cohort, ascending by silo."""

    adverts: tuple[bytes, ...] = blobs(MOST_SILOS, 320)


@dataclass(frozen=True, repr=False)
class Shares(Signed, kind=4):
    """Step 2. Per holder, ascending, 96 bytes of hashes (seed share, key share, salted totals part); sealed packets
    for the K − 1 peers, ascending, all of one size."""

    session: bytes = fixed(HASH)
    silo: int = silo_id()
    hashes: bytes = blob(3 * HASH * MOST_SILOS)
    packets: tuple[bytes, ...] = blobs(MOST_SILOS, PACKET_LIMIT)
    signature: bytes = blob(SIGNATURE)


@dataclass(frozen=True, repr=False)
class Packets(Message, kind=5):
    """Step 2. Per dealer, ascending: its K leaves (32 bytes each); the K − 1 packets sealed to this silo."""

    session: bytes = fixed(HASH)
    leaves: tuple[bytes, ...] = blobs(MOST_SILOS, HASH * MOST_SILOS)
    packets: tuple[bytes, ...] = blobs(MOST_SILOS, PACKET_LIMIT)


@dataclass(frozen=True, repr=False)
class Receipt(Signed, kind=6):
    """Step 2. ``transcript`` is a hash over all dealers' leaves."""

    session: bytes = fixed(HASH)
    silo: int = silo_id()
    transcript: bytes = fixed(HASH)
    signature: bytes = blob(SIGNATURE)


@dataclass(frozen=True, repr=False)
class Receipts(Message, kind=7):
    """Step 2, the same bytes for all: the signatures of the K receipts, ascending by silo."""

    session: bytes = fixed(HASH)
    signatures: tuple[bytes, ...] = blobs(MOST_SILOS, SIGNATURE)


@dataclass(frozen=True, repr=False)
class SubSums(Signed, kind=8):
    """Step 2. ``openings``: two 16-byte field elements per dealer, public; the sub-sums sealed to each peer."""

    session: bytes = fixed(HASH)
    silo: int = silo_id()
    openings: bytes = blob(32 * MOST_SILOS)
    packets: tuple[bytes, ...] = blobs(MOST_SILOS, PACKET_LIMIT)
    signature: bytes = blob(SIGNATURE)


@dataclass(frozen=True, repr=False)
class SubSumsRelay(Message, kind=9):
    """Step 2. From each holder that sent sub-sums (this silo left out), ascending: openings and sealed packet."""

    session: bytes = fixed(HASH)
    holders: tuple[int, ...] = silo_ids(MOST_SILOS)
    openings: tuple[bytes, ...] = blobs(MOST_SILOS, 32 * MOST_SILOS)
    packets: tuple[bytes, ...] = blobs(MOST_SILOS, PACKET_LIMIT)


@dataclass(frozen=True, repr=False)
class Opened(Signed, kind=10):
    """Step 2, all that the server learns of the totals: which components passed the gate."""

    session: bytes = fixed(HASH)
    silo: int = silo_id()
    open: tuple[bool, ...] = flags(MOST_COMPONENTS)
    signature: bytes = blob(SIGNATURE)


@dataclass(frozen=True, repr=False)
class Piece(Message, kind=11):
    """Step 3. ``tag`` authenticates silo, index and data towards the server."""

    session: bytes = fixed(HASH)
    silo: int = silo_id()
    index: int = integer(0, COUNTER)
    tag: bytes = fixed(16)
    data: bytes | memoryview = bulk()  # noqa: RUF009 - declares, holds nothing


@dataclass(frozen=True, repr=False)
class Uploaded(Signed, kind=12):
    """Step 3. ``digest`` covers the tags of all pieces, in order."""

    session: bytes = fixed(HASH)
    silo: int = silo_id()
    digest: bytes = fixed(HASH)
    signature: bytes = blob(SIGNATURE)


@dataclass(frozen=True, repr=False)
class Survivors(Message, kind=13):
    """Step 4, the same bytes for all: who uploaded, and the digest and signature of each ``Uploaded`` (96 bytes)."""

    session: bytes = fixed(HASH)
    survivors: tuple[int, ...] = silo_ids(MOST_SILOS)
    receipts: tuple[bytes, ...] = blobs(MOST_SILOS, HASH + SIGNATURE)


@dataclass(frozen=True, repr=False)
class Consent(Signed, kind=14):
    """Step 4. ``totals`` is keyed: equal on silos with equal totals, meaningless to the server."""

    session: bytes = fixed(HASH)
    silo: int = silo_id()
    survivors: tuple[int, ...] = silo_ids(MOST_SILOS)
    receipts: bytes = fixed(HASH)
    totals: bytes = fixed(HASH)
    signature: bytes = blob(SIGNATURE)


@dataclass(frozen=True, repr=False)
class UnmaskRequest(Message, kind=15):
    """Step 5, the same bytes for all: who consented and the signatures, ascending by silo."""

    session: bytes = fixed(HASH)
    silos: tuple[int, ...] = silo_ids(MOST_SILOS)
    signatures: tuple[bytes, ...] = blobs(MOST_SILOS, SIGNATURE)


@dataclass(frozen=True, repr=False)
class Reveal(Signed, kind=16):
    """Step 5. Per silo of the cohort, ascending: the share of its self-mask seed (survivor) or key (dropped)."""

    session: bytes = fixed(HASH)
    silo: int = silo_id()
    shares: tuple[bytes, ...] = blobs(MOST_SILOS, 66)
    signature: bytes = blob(SIGNATURE)


@dataclass(frozen=True, repr=False)
class Release(Message, kind=17):
    """Step 5, one object for all. Masked: ``scalars`` are the sums of metrics and of the clipped magnitude (8 bytes
    each), ``tags`` those of the verification tags (or empty), ``values`` little-endian int32. Back-end ``none`` fills
    ``metrics`` and ``clipped_share`` instead, and ``values`` are float32."""

    session: bytes = fixed(HASH)
    survivors: tuple[int, ...] = silo_ids(MOST_SILOS)
    open: tuple[bool, ...] = flags(MOST_COMPONENTS)
    metrics: tuple[float, ...] = reals(MOST_SCALARS)
    clipped_share: float = real()
    scalars: bytes = blob(8 * MOST_SCALARS)
    tags: bytes = blob(32)
    values: bytes | memoryview = bulk()  # noqa: RUF009 - declares, holds nothing


@dataclass(frozen=True, repr=False)
class Abort(Message, kind=18):
    """The end of the session for its receiver."""

    reason: str = text(512)
    culprits: tuple[int, ...] = silo_ids(MOST_SILOS)


@dataclass(frozen=True, repr=False)
class Void(Signed, kind=19):
    """Its signer sent no share of any seed or key of this session, and has erased those it held. ``cohort`` is the
    session's: it says how many such signatures make a certificate (``gate.void_quorum``)."""

    session: bytes = fixed(HASH)
    silo: int = silo_id()
    cohort: tuple[int, ...] = silo_ids(MOST_SILOS)
    signature: bytes = blob(SIGNATURE)


@dataclass(frozen=True, repr=False)
class PlainJoin(Message, kind=32):
    """Back-end ``none``: size classes and statistics in the clear."""

    proposal: bytes = fixed(HASH)
    silo: int = silo_id()
    classes: tuple[int, ...] = integers(MOST_COMPONENTS, 0, 1 << 53)
    statistics: tuple[float, ...] = reals(MOST_SCALARS)


@dataclass(frozen=True, repr=False)
class PlainTotals(Message, kind=33):
    """Back-end ``none``: the cohort's totals, from the server."""

    session: bytes = fixed(HASH)
    weights: tuple[int, ...] = integers(MOST_COMPONENTS, 0, 1 << 62)
    holders: tuple[int, ...] = integers(MOST_COMPONENTS, 0, MOST_SILOS)
    statistics: tuple[float, ...] = reals(MOST_SCALARS)


@dataclass(frozen=True, repr=False)
class PlainUploaded(Message, kind=34):
    """Back-end ``none``: end of the upload. ``clipped`` is an order of magnitude, as in the masked back-end."""

    session: bytes = fixed(HASH)
    silo: int = silo_id()
    metrics: tuple[float, ...] = reals(MOST_SCALARS)
    clipped: int = integer(0, 1 << 53)


@dataclass(frozen=True, repr=False)
class Sum(Message, kind=48):
    """A released aggregate, complete in itself, for silos that were not in the cohort (``api.encode_aggregate``)."""

    spec: bytes = fixed(HASH)
    dtype: str = text(8)
    open: tuple[bool, ...] = flags(MOST_COMPONENTS)
    cohort: tuple[int, ...] = silo_ids(MOST_SILOS)
    survivors: tuple[int, ...] = silo_ids(MOST_SILOS)
    metrics: tuple[float, ...] = reals(MOST_SCALARS)
    clipped_share: float = real()
    values: bytes | memoryview = bulk()  # noqa: RUF009 - declares, holds nothing
