"""A silo's one-session secrets, the packets it deals to its peers, and what it does with those it receives (step 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from secure.errors import BlameError, ProtocolError
from secure.keys import (
    MaskingKey,
    RandomBytes,
    SealingKey,
    Secret,
    _Secretive,
    derive,
    frame,
    open_sealed,
    random_bytes,
    seal,
)
from secure.messages import HASH, Advert, Packets, SubSumsRelay
from secure.protocol.field import ELEMENT_BYTES, elements, encoded, share_lists
from secure.protocol.plane import STREAM_KEY_BYTES, Masks
from secure.protocol.proposal import digest, id_bytes
from secure.protocol.totals import HolderView, Layout
from secure.protocol.uploading import PieceKey
from secure.shamir import SHARE_BYTES, encode_share, split
from secure.types import SiloId

SALT_BYTES = 32
PART_BYTES = 32
TRIPLE = 3 * HASH
"""Bytes of one holder's three hashes in a dealer's list."""


def seed_commitment(proposal: bytes, silo: SiloId, seed: bytes) -> bytes:
    """Binding and, as a seed has 256 uniform bits, hiding."""
    return digest("self-mask seed", proposal, id_bytes(silo), seed)


def share_hash(kind: str, session: bytes, dealer: SiloId, holder: SiloId, share: bytes, salt: bytes = b"") -> bytes:
    """Hash of one share. Shares of seeds and keys are uniform and need no salt; those of totals come from numbers that
    can be guessed, once the colluders hold one share too few, and have a salt that only the holder gets."""
    return digest("share", kind.encode(), session, id_bytes(dealer), id_bytes(holder), salt, share)


def leaves_of(hashes: bytes) -> bytes:
    """One 32-byte leaf per holder from its three hashes: what silos see of a dealer's list."""
    return b"".join([digest("leaf", hashes[i : i + TRIPLE]) for i in range(0, len(hashes), TRIPLE)])


def transcript_of(session: bytes, leaves: Sequence[bytes]) -> bytes:
    """Hash over all dealers' leaves, ascending: what receipts sign and the challenge is drawn from."""
    return digest("dealt", session, *leaves)


def self_masks(seed: bytes, session: bytes, silo: SiloId) -> bytes:
    """Key of a silo's own mask."""
    return derive(seed, "self mask", session, id_bytes(silo), length=STREAM_KEY_BYTES)


def pair_masks(shared: bytes, session: bytes, one: SiloId, other: SiloId) -> bytes:
    """Key of the mask that two silos share (X25519 result in)."""
    low, high = sorted((one, other))
    return derive(shared, "pair mask", session, id_bytes(low), id_bytes(high), length=STREAM_KEY_BYTES)


@dataclass(frozen=True, repr=False)
class Packet(_Secretive):
    """What one dealer gives one holder, all in one sealed packet of fixed size.

    Attributes:
        seed_share, key_share: t-of-K shares of the self-mask seed and of the masking key.
        totals: T-of-K shares of the dealer's totals, 16 bytes an element.
        salt: of the totals' hash.
        part: the dealer's part of the key that silos share, the same for all holders.
        leaves: digest of the dealer's leaves, so that the list needs no further check.
    """

    seed_share: bytes
    key_share: bytes
    totals: bytes
    salt: bytes
    part: bytes
    leaves: bytes

    def without_totals(self) -> Packet:
        """What is still needed once the totals are known: two shares."""
        return Packet(self.seed_share, self.key_share, b"", b"", b"", b"")

    def encode(self) -> bytes:
        """Concatenation: every field has a fixed length."""
        return b"".join((self.seed_share, self.key_share, self.totals, self.salt, self.part, self.leaves))

    @classmethod
    def decode(cls, data: bytes, totals_bytes: int) -> Packet:
        """Undo ``encode``.

        Raises:
            ProtocolError: wrong length.
        """
        sizes = (SHARE_BYTES, SHARE_BYTES, totals_bytes, SALT_BYTES, PART_BYTES, HASH)
        if len(data) != sum(sizes):
            raise ProtocolError("packet has the wrong size")
        fields, start = [], 0
        for size in sizes:
            fields.append(data[start : start + size])
            start += size
        return cls(*fields)

    def hashes(self, session: bytes, dealer: SiloId, holder: SiloId) -> bytes:
        """The holder's triple in the dealer's list."""
        return (
            share_hash("seed", session, dealer, holder, self.seed_share)
            + share_hash("key", session, dealer, holder, self.key_share)
            + share_hash("totals", session, dealer, holder, self.totals, self.salt)
        )


class PeerKeys(_Secretive):
    """Four sealing keys with one peer: packet and sub-sums, out and in."""

    __slots__ = ("packet_in", "packet_out", "sums_in", "sums_out")

    def __init__(self, shared: bytes, session: bytes, own: SiloId, peer: SiloId) -> None:
        low, high = sorted((own, peer))
        data = derive(shared, "sealing", session, id_bytes(low), id_bytes(high), length=128)
        up, down = (data[:32], data[32:64]), (data[64:96], data[96:])  # from the lower to the higher id, and back
        (self.packet_out, self.sums_out), (self.packet_in, self.sums_in) = (up, down) if own < peer else (down, up)


class Secrets(_Secretive):
    """Everything secret that a silo makes for one session."""

    def __init__(self, random: RandomBytes) -> None:
        self.sealing = SealingKey.generate(random)
        self.masking = MaskingKey.generate(random)
        self.seed = Secret.generate(random)
        self.part = Secret.generate(random, PART_BYTES)
        self.peers: dict[SiloId, PeerKeys] = {}
        self.masks: Masks | None = None
        self.piece_key: PieceKey | None = None

    def meet(self, session: bytes, own: SiloId, adverts: Mapping[SiloId, Advert], server_key: bytes) -> None:
        """Agree on all keys with every peer and the server, before any share leaves.

        Own mask added; of each pair's mask, the lower id adds it, the higher subtracts it.

        Raises:
            ProtocolError: somebody's key is of small order.
        """
        added, subtracted = [self_masks(self.seed.reveal(), session, own)], list[bytes]()
        for peer, advert in adverts.items():
            if peer != own:
                self.peers[peer] = PeerKeys(self.sealing.shared(advert.sealing_key), session, own, peer)
                mask = pair_masks(self.masking.shared(advert.masking_key), session, own, peer)
                (added if own < peer else subtracted).append(mask)
        self.masks = Masks(tuple(added), tuple(subtracted))
        self.piece_key = PieceKey(self.sealing, server_key, session, own)

    def erase(self) -> None:
        """Drop everything. Idempotent."""
        self.sealing.erase()
        self.masking.erase()
        self.seed.erase()
        self.part.erase()
        self.peers.clear()
        self.masks = self.piece_key = None


@dataclass(frozen=True, repr=False)
class Dealt(_Secretive):
    """A dealer's output: the hash list, its own packet, and the sealed ones for its peers, ascending."""

    hashes: bytes
    own: Packet
    sealed: tuple[bytes, ...]


def deal_packets(
    secrets: Secrets,
    session: bytes,
    own: SiloId,
    cohort: Sequence[SiloId],
    thresholds: tuple[int, int],
    numbers: Sequence[int],
    random: RandomBytes,
) -> Dealt:
    """Split seed, masking key and totals, hash every share, and seal one packet for each peer.

    Args:
        thresholds: t of seeds and keys, T of the totals.
        numbers: ``totals.deal``.
    """
    threshold, totals_threshold = thresholds
    seeds = split(int.from_bytes(secrets.seed.reveal(), "big"), threshold, cohort, random)
    keys = split(int.from_bytes(secrets.masking.private_bytes(), "big"), threshold, cohort, random)
    totals = share_lists(numbers, totals_threshold, cohort, random)
    part = secrets.part.reveal()
    drafts = [
        Packet(
            encode_share(seeds[holder]),
            encode_share(keys[holder]),
            totals[holder],
            random_bytes(random, SALT_BYTES),
            part,
            b"",
        )
        for holder in cohort
    ]
    hashes = b"".join([draft.hashes(session, own, holder) for holder, draft in zip(cohort, drafts, strict=True)])
    leaves = digest("leaves", leaves_of(hashes))
    packets = {
        holder: Packet(draft.seed_share, draft.key_share, draft.totals, draft.salt, part, leaves)
        for holder, draft in zip(cohort, drafts, strict=True)
    }
    sealed = tuple(
        seal(secrets.peers[peer].packet_out, packets[peer].encode(), associated("packet", session, own, peer), random)
        for peer in cohort
        if peer != own
    )
    return Dealt(hashes, packets[own], sealed)


def associated(kind: str, session: bytes, sender: SiloId, receiver: SiloId) -> bytes:
    """Associated data of a sealed packet."""
    return frame(kind.encode(), session, id_bytes(sender), id_bytes(receiver))


def open_packets(
    secrets: Secrets, message: Packets, own: SiloId, cohort: Sequence[SiloId], layout: Layout
) -> dict[SiloId, Packet]:
    """Open the packets of all peers and check each against its dealer's list.

    Raises:
        ProtocolError: incomplete, cannot be opened, or altered on its way.
        BlameError: a dealer's list does not match what it sealed.
    """
    session, rank = message.session, tuple(cohort).index(own)
    peers = [(silo, leaves) for silo, leaves in zip(cohort, message.leaves, strict=True) if silo != own]
    if len(message.packets) != len(peers):
        raise ProtocolError("packets of the cohort are incomplete")
    packets = {}
    for (dealer, leaves), sealed in zip(peers, message.packets, strict=True):
        data = open_sealed(secrets.peers[dealer].packet_in, sealed, associated("packet", session, dealer, own))
        packet = Packet.decode(data, layout.share_bytes)
        if len(leaves) != HASH * len(cohort) or packet.leaves != digest("leaves", leaves):
            raise ProtocolError(f"hashes of silo {dealer} were altered on their way")
        if digest("leaf", packet.hashes(session, dealer, own)) != leaves[HASH * rank : HASH * (rank + 1)]:
            raise BlameError(dealer, "a share does not match the hash that was signed for it")
        packets[dealer] = packet
    return packets


def seal_view(
    secrets: Secrets, view: HolderView, session: bytes, own: SiloId, cohort: Sequence[SiloId], random: RandomBytes
) -> tuple[bytes, ...]:
    """A holder's sub-sums for each peer, ascending, with a digest that authenticates its public openings."""
    plain = encoded(view.sums) + digest("openings", encoded(view.openings))
    return tuple(
        seal(secrets.peers[peer].sums_out, plain, associated("sums", session, own, peer), random)
        for peer in cohort
        if peer != own
    )


def open_views(
    secrets: Secrets, message: SubSumsRelay, own: SiloId, cohort: Sequence[SiloId], layout: Layout
) -> dict[SiloId, HolderView]:
    """What the peers sent of their sub-sums.

    Raises:
        ProtocolError: strangers, cannot be opened, or altered on its way.
    """
    holders = message.holders
    counts = {len(holders), len(message.openings), len(message.packets)}
    if own in holders or not set(holders) <= set(cohort) or len(counts) != 1:
        raise ProtocolError("sub-sums are incomplete, or of silos outside the cohort")
    views = {}
    for holder, openings, sealed in zip(holders, message.openings, message.packets, strict=True):
        key = secrets.peers[holder].sums_in
        plain = open_sealed(key, sealed, associated("sums", message.session, holder, own))
        if len(plain) != ELEMENT_BYTES * layout.sums + HASH or plain[-HASH:] != digest("openings", openings):
            raise ProtocolError(f"sub-sums of silo {holder} were altered on their way")
        views[holder] = HolderView(tuple(elements(plain[:-HASH])), tuple(elements(openings)))
    return views


def totals_of(packet: Packet) -> list[int]:
    """The totals' shares of a packet."""
    return elements(packet.totals)


def shared_key(parts: Mapping[SiloId, bytes], session: bytes) -> bytes:
    """κ: the key that only the silos of this session share; unknown to whoever misses a single part."""
    ordered = frame(*(parts[silo] for silo in sorted(parts)))
    return derive(ordered, "silos' key", session)
