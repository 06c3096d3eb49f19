"""Step 5 on the server: rebuild seeds of survivors and keys of dropped silos, name liars, and see what masks are left.

A share counts only if it matches the hash that its dealer signed, so a wrong one convicts the holder who signed its
``Reveal``. A secret counts only if it matches the dealer's commitment or public key; if no choice of good shares gives
it, the dealer is convicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from secure.errors import BlameError, ProtocolError
from secure.keys import MaskingKey
from secure.messages import Advert, Reveal
from secure.protocol.dealing import pair_masks, seed_commitment, self_masks, share_hash
from secure.protocol.ledger import Ledger
from secure.protocol.plane import Masks
from secure.shamir import combine, decode_share
from secure.types import SiloId


class Recovery:
    """Collects reveals of one session.

    Args:
        session, proposal: hashes.
        adverts: silo → advert, the whole cohort.
        ledger: the dealers' hashes; shares go there.
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
        ledger: Ledger,
        survivors: Sequence[SiloId],
        threshold: int,
    ) -> None:
        self._session, self._proposal, self._adverts, self._ledger = session, proposal, adverts, ledger
        self._survivors, self._threshold = set(survivors), threshold
        self._good = dict.fromkeys(adverts, 0)  # dealer → which holders' shares are good, a bit for each
        self.liars: set[SiloId] = set()

    def add(self, message: Reveal) -> None:
        """Take one holder's reveal; shares that do not match their hash are left out and convict the holder.

        Raises:
            ProtocolError: wrong number or size of shares.
        """
        self._ledger.take_reveal(message)
        holder = message.silo
        bit = 1 << list(self._adverts).index(holder)
        for dealer, share in zip(self._adverts, message.shares, strict=True):
            alive = dealer in self._survivors
            signed = self._ledger.hashes(dealer, holder)[0 if alive else 1]
            if share_hash("seed" if alive else "key", self._session, dealer, holder, share) == signed:
                self._good[dealer] |= bit
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
        good = [holder for rank, holder in enumerate(self._adverts) if self._good[dealer] >> rank & 1]
        if len(good) < self._threshold:
            raise ProtocolError("too few good shares of a secret came")
        for attempt, holders in enumerate(_choices(good, self._threshold)):
            try:
                value = combine({holder: decode_share(self._ledger.share(holder, dealer)) for holder in holders})
            except ProtocolError:  # no field element, although its dealer signed it
                continue
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
