"""Steps 1 and 2 on the server: are messages complete and of the one allowed size, and who gets which part of them?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from secure.errors import ProtocolError
from secure.keys import SEAL_OVERHEAD
from secure.messages import HASH, Packets, Shares, SubSums, SubSumsRelay
from secure.protocol.dealing import PART_BYTES, SALT_BYTES, TRIPLE, leaves_of
from secure.protocol.field import ELEMENT_BYTES
from secure.protocol.totals import Layout
from secure.shamir import SHARE_BYTES
from secure.types import SiloId


def check_shares(message: Shares, silos: int, layout: Layout) -> None:
    """K hash triples and K − 1 packets of one size.

    Raises:
        ProtocolError: incomplete or of another size.
    """
    plain = 2 * SHARE_BYTES + layout.share_bytes + SALT_BYTES + PART_BYTES + HASH
    sizes = {len(packet) for packet in message.packets}
    complete = len(message.hashes) == TRIPLE * silos and len(message.packets) == silos - 1
    if not complete or sizes != {plain + SEAL_OVERHEAD}:
        raise ProtocolError("packets are incomplete or of the wrong size")


def check_sums(message: SubSums, silos: int, layout: Layout) -> None:
    """Two openings a dealer and K − 1 packets of one size.

    Raises:
        ProtocolError: incomplete or of another size.
    """
    plain = ELEMENT_BYTES * layout.sums + HASH
    sizes = {len(packet) for packet in message.packets}
    complete = len(message.openings) == 2 * ELEMENT_BYTES * silos and len(message.packets) == silos - 1
    if not complete or sizes != {plain + SEAL_OVERHEAD}:
        raise ProtocolError("sub-sums are incomplete or of the wrong size")


def _for_peer(packets: Sequence[bytes], cohort: Sequence[SiloId], sender: SiloId, receiver: SiloId) -> bytes:
    """The packet for ``receiver`` among those for all peers of ``sender``, ascending."""
    peers = [silo for silo in cohort if silo != sender]
    return packets[peers.index(receiver)]


def relay_packets(session: bytes, shares: Mapping[SiloId, Shares], cohort: Sequence[SiloId]) -> dict[SiloId, Packets]:
    """What each silo gets of everybody's ``Shares``."""
    leaves = tuple(leaves_of(shares[dealer].hashes) for dealer in cohort)
    return {
        silo: Packets(
            session,
            leaves,
            tuple(_for_peer(shares[dealer].packets, cohort, dealer, silo) for dealer in cohort if dealer != silo),
        )
        for silo in cohort
    }


def relay_sums(
    session: bytes, sums: Mapping[SiloId, SubSums], cohort: Sequence[SiloId], receivers: Sequence[SiloId]
) -> dict[SiloId, SubSumsRelay]:
    """What each receiver gets of the sub-sums that came."""
    relayed = {}
    for silo in receivers:
        holders = tuple(holder for holder in sorted(sums) if holder != silo)
        relayed[silo] = SubSumsRelay(
            session,
            holders,
            tuple(sums[holder].openings for holder in holders),
            tuple(_for_peer(sums[holder].packets, cohort, holder, silo) for holder in holders),
        )
    return relayed
