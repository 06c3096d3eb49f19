"""The server and c silos pool everything; what they still cannot compute is counted and looked at.

What the coalition computes here is all that can be computed from its shares, its keys and every message: seeds of
survivors and masking keys of dropped silos (once t reveals are in), and its own members' masking keys.
"""

from __future__ import annotations

import itertools

import numpy as np
import oracle
import pytest
from adversarial import from_silos, row
from harness import Drive, Replay, World, chain, drop, inputs
from test_session_happy import check_against_oracle

from secure.api import Contribution, open_silo
from secure.errors import InputError
from secure.gate import feasibility, infeasible
from secure.keys import MaskingKey
from secure.messages import Advert, Consent, Piece, Reveal, Shares, Uploaded
from secure.prg import MaskStream
from secure.protocol.agreement import thresholds, too_many_colluders
from secure.protocol.dealing import pair_masks, seed_commitment, self_masks
from secure.protocol.field import PRIME, share_lists, weights
from secure.shamir import combine, decode_share
from secure.types import Block, Rules, VectorSpec

LENGTH = 20_000
SPEC = VectorSpec(1, (Block("a", LENGTH, 8.0, 0),))


def chi_square(words):
    """Of the bytes against uniform: 255 on average, spread 23; anything structured is in the thousands."""
    counts = np.bincount(np.frombuffer(words.astype("<u4").tobytes(), np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2 / expected).sum())


def stream(key):
    words = np.zeros(LENGTH, dtype="<u4")
    MaskStream(key).into(words)
    return words


class Coalition:
    """The server and ``members`` after (or before) the unmasking of one session."""

    def __init__(self, silos, members, dropped=(), colluders=1, drops=2):
        self.world = World(range(1, silos + 1), rules=Rules(colluders=colluders, max_drops=drops, min_contributors=3))
        params = self.world.params(spec=SPEC, piece_bytes=1 << 16)
        self.members, self.dropped, self.keys, self.held = members, dropped, {}, {}
        run = self.run = Drive(self.world, params, data=inputs(params))
        run.on_send = chain(self._keep, *(drop(Uploaded, silo) for silo in dropped))
        run.go()
        check_against_oracle(run)
        self.session = from_silos(run, Shares)[0].session
        self.adverts = {advert.silo: advert for advert in from_silos(run, Advert)}
        self.truth = {silo: self._truth(silo) for silo in self.world.silos}

    def _keep(self, sender, receiver, payload):
        """Members keep their secrets and the shares that they hold, before the protocol erases them."""
        if sender in self.members:
            session = self.run.silos[sender]
            if session._secrets is not None and sender not in self.keys:
                self.keys[sender] = session._secrets.masking.private_bytes()
            if session._packets:
                self.held[sender] = dict(session._packets)
        return [payload]

    def _truth(self, silo):
        params = self.run.params
        classes, totals, _, _, opened = oracle.totals(params, self.run.samples, self.run.statistics)
        share = oracle.shares(params, classes, totals, opened)[silo]
        return oracle.quantised(params, self.run.vectors[silo], share)[0].astype(np.int32).view("<u4")

    def upload(self, silo):
        data = b"".join(bytes(piece.data) for piece in from_silos(self.run, Piece, silo))
        return np.frombuffer(data[: 4 * LENGTH], "<u4")

    def rebuilt(self):
        """Seeds of survivors and masking keys of dropped silos, from the reveals."""
        threshold, cohort = feasibility(len(self.world.silos)).threshold, self.run.params.cohort
        reveals = from_silos(self.run, Reveal)[:threshold]
        secrets = {}
        for place, silo in enumerate(cohort):
            value = combine({reveal.silo: decode_share(reveal.shares[place]) for reveal in reveals})
            secrets[silo] = value.to_bytes(32, "big")
        return secrets

    def pair_key(self, mine, own, peer):
        shared = MaskingKey.from_private_bytes(mine).shared(self.adverts[peer].masking_key)
        return pair_masks(shared, self.session, own, peer)

    def residual(self, silo, unmasked):
        """The upload less every mask that the coalition can compute, and less the truth."""
        rest = self.upload(silo) - self.truth[silo]
        known = dict(self.keys)
        if unmasked:
            secrets = self.rebuilt()
            known |= {gone: secrets[gone] for gone in self.dropped}
            if silo not in self.dropped:
                rest = rest - stream(self_masks(secrets[silo], self.session, silo))
        for peer in self.world.silos:
            if peer != silo and (peer in known or silo in known):
                key = (
                    self.pair_key(known[peer], peer, silo) if peer in known else self.pair_key(known[silo], silo, peer)
                )
                rest = rest - stream(key) if silo < peer else rest + stream(key)
        return rest


@row("collusion", "partial-uploads")
@pytest.mark.parametrize(
    ("silos", "members", "dropped", "colluders"),
    [(5, (2,), (), 1), (6, (6,), (3,), 1), (7, (1,), (2, 7), 1), (10, (4, 9), (), 2), (10, (1, 2), (5,), 2)],
)
def test_nothing_less_than_the_honest_survivors_sum_can_be_unmasked(silos, members, dropped, colluders):
    """Every proper subset of the honest survivors, and every dropped silo, stays under an unknown mask."""
    pool = Coalition(silos, members, dropped, colluders, drops=max(1, len(dropped)))
    honest = [silo for silo in pool.world.silos if silo not in (*members, *dropped)]
    after = {silo: pool.residual(silo, unmasked=True) for silo in (*honest, *dropped)}
    total = sum(after[silo] for silo in honest)
    assert not total.any()  # the sum itself is what a session promises to release, and the test can see it
    assert chi_square(total) > 10_000
    subsets = [subset for size in range(1, len(honest)) for subset in itertools.combinations(honest, size)]
    for subset in subsets[:: max(1, len(subsets) // 60)]:
        assert chi_square(sum(after[silo] for silo in subset)) < 400, subset
    for silo in dropped:
        assert chi_square(after[silo]) < 400
    for silo in honest:
        assert chi_square(pool.residual(silo, unmasked=False)) < 400


@row("collusion")
def test_shares_that_the_coalition_holds_rebuild_nothing_else():
    """For each peer one secret is rebuilt by design; of the other it holds c shares, and t are needed."""
    pool = Coalition(7, (1,), (4,))
    threshold = feasibility(7).threshold
    proposal = pool.adverts[1].proposal
    revealed = pool.rebuilt()
    for silo in pool.world.silos:
        is_seed = seed_commitment(proposal, silo, revealed[silo]) == pool.adverts[silo].commitment
        assert is_seed == (silo != 4)
        kept = [pool.held[member][silo] for member in pool.members]
        assert len(kept) == 1 < threshold
        guess = combine({1: decode_share(kept[0].key_share if silo != 4 else kept[0].seed_share)})
        wanted = pool.adverts[silo].masking_key
        if silo != 1 and guess >> 256 == 0:
            assert MaskingKey.from_private_bytes(guess.to_bytes(32, "big")).public != wanted
    assert all(len(reveal.shares) == 7 for reveal in from_silos(pool.run, Reveal))


@row("collusion")
@pytest.mark.parametrize(("silos", "colluders"), [(4, 1), (7, 1), (10, 2), (25, 5)])
def test_shares_of_totals_fit_every_possible_total(silos, colluders):
    """For any other number there is a polynomial through the coalition's c shares: they say nothing."""
    rules = Rules(colluders=colluders, max_drops=0)
    assert not infeasible(silos, rules)
    world = World(range(1, silos + 1), rules=rules)
    threshold = thresholds(world.params())[1]
    assert threshold > colluders
    holders = tuple(range(1, silos + 1))
    shares = share_lists([137], threshold, holders, Replay("totals"))
    own = {holder: shares[holder][0] for holder in holders[:colluders]}
    for other in (0, 1, 138, 2**40):
        points = (0, *own, *range(1000, 1000 + threshold - colluders - 1))
        values = [other, *own.values(), *range(threshold - colluders - 1)]
        at = {h: sum(w * v for w, v in zip(weights(points, h), values, strict=True)) % PRIME for h in holders}
        assert {holder: at[holder] for holder in own} == own
        back = weights(holders[:threshold], 0)
        assert sum(w * at[h] for w, h in zip(back, holders[:threshold], strict=True)) % PRIME == other


@row("more-colluders")
def test_more_colluders_than_silos_withstand_are_refused():
    expected = {3: 1, 4: 1, 5: 1, 6: 2, 7: 2, 10: 3, 16: 5, 100: 33}
    for silos, most in expected.items():
        assert feasibility(silos).max_colluders == most
        bad = Rules(colluders=most + 1, max_drops=0, min_contributors=2)
        assert infeasible(silos, bad)
        world = World(range(1, silos + 1), rules=Rules(max_drops=0, min_contributors=2))
        params = world.params(rules=bad)
        with pytest.raises(InputError):
            Drive(world, params)
        with pytest.raises(InputError):
            open_silo(1, params, Contribution((9.0, 9.0), (0.0, 0.0)), credentials=world.credentials(1),
                      journal=world.journals[1])  # fmt: skip
    for silos in range(3, 129):
        case = feasibility(silos)
        for colluders in range(case.max_colluders + 1):
            assert 2 * case.quorum > silos + colluders
            assert case.threshold - colluders > colluders
            assert not too_many_colluders(silos, Rules(colluders=colluders))


@row("more-colluders")
def test_two_quorums_need_more_liars_than_the_table_allows():
    """Two survivor sets would need q signatures each: every honest silo signs one, so q + q ≤ K + c."""
    for silos in range(3, 129):
        case = feasibility(silos)
        assert 2 * case.quorum - silos > case.max_colluders


@row("collusion")
def test_one_release_serves_one_quorum():
    """With both members signing anything the server likes, a second set still lacks signatures."""
    pool = Coalition(10, (1, 2), (), 2)
    consents = from_silos(pool.run, Consent)
    honest = {consent.silo for consent in consents} - {1, 2}
    quorum = feasibility(10).quorum
    assert len(honest) + 2 >= quorum
    assert len({consent.survivors for consent in consents}) == 1
    assert 10 - quorum + 2 < quorum  # those that did not sign the first, and the members, are too few for another
