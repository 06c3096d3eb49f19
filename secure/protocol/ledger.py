"""What silos sent in steps 2 and 5, on disk: the complete graph has K² packets, and the server's memory has not.

One row per silo: its hashes, its sealed packets, its openings, its sealed sub-sums, and the shares it reveals. The
server reads back one silo's part at a time. Nothing in it is secret from the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from secure.errors import ProtocolError
from secure.keys import SEAL_OVERHEAD
from secure.messages import HASH, Packets, Reveal, Shares, SubSums, SubSumsRelay
from secure.protocol.dealing import PART_BYTES, SALT_BYTES, TRIPLE, leaves_of
from secure.protocol.field import ELEMENT_BYTES
from secure.protocol.totals import Layout
from secure.shamir import SHARE_BYTES
from secure.spool import Spool
from secure.types import SiloId


class Ledger:
    """Rows of one session.

    Args:
        directory: where the file is made; ``None``: the system's directory for temporary files.
        cohort: ascending.
        layout: of the totals.
    """

    def __init__(self, directory: Path | None, cohort: Sequence[SiloId], layout: Layout) -> None:
        silos = len(cohort)
        self._rank = {silo: rank for rank, silo in enumerate(cohort)}
        self._packet = SEAL_OVERHEAD + 2 * SHARE_BYTES + layout.share_bytes + SALT_BYTES + PART_BYTES + HASH
        self._sums = SEAL_OVERHEAD + ELEMENT_BYTES * layout.sums + HASH
        self._openings = 2 * ELEMENT_BYTES * silos
        self._at_packets = TRIPLE * silos
        self._at_openings = self._at_packets + self._packet * (silos - 1)
        self._at_sums = self._at_openings + self._openings
        self._at_shares = self._at_sums + self._sums * (silos - 1)
        self._spool = Spool(directory, self._at_shares + SHARE_BYTES * silos, silos)

    def _for_peer(self, sender: SiloId, receiver: SiloId) -> int:
        """Place of ``receiver`` among the peers of ``sender``."""
        rank = self._rank[receiver]
        return rank - (rank > self._rank[sender])

    def _store_packets(self, silo: SiloId, place: int, packets: Sequence[bytes], size: int) -> None:
        if len(packets) != len(self._rank) - 1 or any(len(packet) != size for packet in packets):
            raise ProtocolError("packets are incomplete or of the wrong size")
        self._spool.write(self._rank[silo], place, b"".join(packets))

    def take_shares(self, message: Shares) -> None:
        """Store K hash triples and K − 1 packets of the one allowed size.

        Raises:
            ProtocolError: incomplete or of another size.
        """
        if len(message.hashes) != TRIPLE * len(self._rank):
            raise ProtocolError("hashes are incomplete")
        self._store_packets(message.silo, self._at_packets, message.packets, self._packet)
        self._spool.write(self._rank[message.silo], 0, message.hashes)

    def take_sums(self, message: SubSums) -> None:
        """Store two openings a dealer and K − 1 packets of the one allowed size.

        Raises:
            ProtocolError: incomplete or of another size.
        """
        if len(message.openings) != self._openings:
            raise ProtocolError("openings are incomplete")
        self._store_packets(message.silo, self._at_sums, message.packets, self._sums)
        self._spool.write(self._rank[message.silo], self._at_openings, message.openings)

    def take_reveal(self, message: Reveal) -> None:
        """Store one share for each silo of the cohort.

        Raises:
            ProtocolError: another number of shares, or of another size.
        """
        if len(message.shares) != len(self._rank) or any(len(share) != SHARE_BYTES for share in message.shares):
            raise ProtocolError("a reveal has one share for each silo of the cohort")
        self._spool.write(self._rank[message.silo], self._at_shares, b"".join(message.shares))

    def leaves(self) -> tuple[bytes, ...]:
        """Every dealer's leaves, ascending."""
        size = TRIPLE * len(self._rank)
        return tuple(leaves_of(self._spool.read(rank, 0, size)) for rank in self._rank.values())

    def packets(self, session: bytes, silo: SiloId, leaves: tuple[bytes, ...]) -> Packets:
        """What one silo gets of everybody's ``Shares``."""
        found = tuple(
            self._spool.read(rank, self._at_packets + self._packet * self._for_peer(dealer, silo), self._packet)
            for dealer, rank in self._rank.items()
            if dealer != silo
        )
        return Packets(session, leaves, found)

    def sub_sums(self, session: bytes, silo: SiloId, holders: Sequence[SiloId]) -> SubSumsRelay:
        """What one silo gets of the sub-sums that came."""
        others = tuple(holder for holder in holders if holder != silo)
        openings, packets = [], []
        for holder in others:
            rank, place = self._rank[holder], self._at_sums + self._sums * self._for_peer(holder, silo)
            openings.append(self._spool.read(rank, self._at_openings, self._openings))
            packets.append(self._spool.read(rank, place, self._sums))
        return SubSumsRelay(session, others, tuple(openings), tuple(packets))

    def hashes(self, dealer: SiloId, holder: SiloId) -> tuple[bytes, bytes]:
        """The hashes that a dealer signed for a holder's seed share and key share."""
        data = self._spool.read(self._rank[dealer], TRIPLE * self._rank[holder], 2 * HASH)
        return data[:HASH], data[HASH:]

    def share(self, holder: SiloId, dealer: SiloId) -> bytes:
        """The share of ``dealer``'s secret that ``holder`` revealed."""
        return self._spool.read(self._rank[holder], self._at_shares + SHARE_BYTES * self._rank[dealer], SHARE_BYTES)

    def close(self) -> None:
        """Give the disk space back. Idempotent."""
        self._spool.close()
