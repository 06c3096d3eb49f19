"""Step 5 on the server: rebuild seeds of survivors and keys of dropped silos, name liars, and see what masks are left.

A share counts only if it matches the hash that its dealer signed, so a wrong one convicts the holder who signed its
``Reveal``. A secret counts only if it matches the dealer's commitment or public key; if no choice of good shares gives
it, the dealer is convicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from secure.errors import BlameError, ProtocolError
from secure.keys import MaskingKey
from secure.messages import HASH, Advert
from secure.protocol.dealing import TRIPLE, pair_masks, seed_commitment, self_masks, share_hash
from secure.protocol.plane import Masks
from secure.shamir import combine, decode_share
from secure.types import SiloId


class Recovery:
    """Collects reveals of one session.

    Args:
        session, proposal: hashes.
        adverts: silo → advert, the whole cohort.
        hashes: dealer → its hash list (96 bytes a holder).
        survivors: those whose seeds are needed; the others' masking keys are.
        threshold: t.

    Attributes:
        liars: silos convicted so far.
    """

    def __init__(
        self,
        session: bytes,
        proposal: bytes,
        adverts: Mapping[SiloId, Advert],
        hashes: Mapping[SiloId, bytes],
        survivors: Sequence[SiloId],
        threshold: int,
    ) -> None:
        self._session, self._proposal, self._adverts, self._hashes = session, proposal, adverts, hashes
        self._survivors, self._threshold = set(survivors), threshold
        self._shares: dict[SiloId, dict[SiloId, int]] = {dealer: {} for dealer in adverts}
        self.liars: set[SiloId] = set()

    def add(self, holder: SiloId, shares: Sequence[bytes]) -> None:
        """Take one holder's reveal; shares that do not match their hash are left out and convict the holder.

        Raises:
            ProtocolError: wrong number of shares.
        """
        if len(shares) != len(self._adverts):
            raise ProtocolError("a reveal has one share for each silo of the cohort")
        rank = list(self._adverts).index(holder)
        for dealer, share in zip(self._adverts, shares, strict=True):
            alive = dealer in self._survivors
            start = TRIPLE * rank + (0 if alive else HASH)
            signed = self._hashes[dealer][start : start + HASH]
            if share_hash("seed" if alive else "key", self._session, dealer, holder, share) == signed:
                self._shares[dealer][holder] = decode_share(share)
            else:
                self.liars.add(holder)

    def masks(self) -> Masks:
        """What is left in the sum of the survivors' uploads, with the sign by which it is taken off.

        Raises:
            BlameError: a dealer's shares do not give what it committed to.
            ProtocolError: fewer than t good shares of a secret.
        """
        added: list[bytes] = []
        subtracted = [self_masks(self._seed(silo), self._session, silo) for silo in sorted(self._survivors)]
        for dropped in self._adverts:
            if dropped in self._survivors:
                continue
            key = self._key(dropped)
            for silo in sorted(self._survivors):
                mask = pair_masks(key.shared(self._adverts[silo].masking_key), self._session, silo, dropped)
                (subtracted if silo < dropped else added).append(mask)
            key.erase()
        return Masks(tuple(added), tuple(subtracted))

    def _seed(self, dealer: SiloId) -> bytes:
        wanted = self._adverts[dealer].commitment
        return self._rebuild(dealer, lambda data: seed_commitment(self._proposal, dealer, data) == wanted)

    def _key(self, dealer: SiloId) -> MaskingKey:
        wanted = self._adverts[dealer].masking_key
        return MaskingKey.from_private_bytes(
            self._rebuild(dealer, lambda data: MaskingKey.from_private_bytes(data).public == wanted)
        )

    def _rebuild(self, dealer: SiloId, is_right: Callable[[bytes], bool]) -> bytes:
        shares = self._shares[dealer]
        if len(shares) < self._threshold:
            raise ProtocolError("too few good shares of a secret came")
        for attempt, holders in enumerate(_choices(sorted(shares), self._threshold)):
            value = combine({holder: shares[holder] for holder in holders})
            if value >> 256 == 0 and is_right(value.to_bytes(32, "big")):
                if attempt:
                    self.liars.add(dealer)
                return value.to_bytes(32, "big")
        raise BlameError(dealer, "its shares do not give the secret that it committed to")


def _choices(holders: Sequence[SiloId], threshold: int) -> Iterator[tuple[SiloId, ...]]:
    """The first t holders; then, if there are more, every choice of t that does without one of these.

    So one wrong share that its dealer signed does no harm. More would need a search, and a dealer that signs several
    has only discarded the round, and is named.
    """
    yield tuple(holders[:threshold])
    if len(holders) > threshold:
        for without in holders[:threshold]:
            yield tuple(holder for holder in holders if holder != without)[:threshold]
