"""Who may take part: the beacon and its witnesses, fresh nonces, and the first difference named."""

from __future__ import annotations

import pytest
from net import RUN, SMALL, Net, once

from fedgmi_fedml.config import load_config
from fedgmi_fedml.rounds.agreement import witness, witnessed_by
from fedgmi_fedml.rounds.wire import Again, Agreed, Finish, Join, decode, encode
from secure.errors import PolicyRefusal
from secure.identity import Identity
from secure.journal import Journal


def test_a_beacon_that_too_few_have_witnessed_is_not_taken_over(tmp_path):
    net = Net(tmp_path)
    net.run()
    agreed = net.agreements[-1]
    signatures = dict(agreed.witnesses)
    assert len(signatures) == 6
    assert witnessed_by(net.parties.roster, RUN, agreed.beacon, agreed.members, signatures) == net.parties.ids
    liar = Identity.generate()
    forged = {i: witness(liar, RUN, b"x" * 32, agreed.members) for i in agreed.members}
    for beacon, members, witnesses in (
        (b"x" * 32, agreed.members, signatures), (b"x" * 32, agreed.members, forged),
        (agreed.beacon, agreed.members[1:], signatures), (agreed.beacon, agreed.members, {1: signatures[1]}),
        (agreed.beacon, agreed.members, {}),
    ):  # fmt: skip
        net.journals[2] = Journal()
        net.down = {2}
        net.boot(2)
        silo = net.runs[2]
        assert list(silo.handle(encode(Agreed(beacon, members, dict(witnesses))))) == []
        assert silo._beacon == b""
    net.journals[2].note_beacon(RUN, b"y" * 32)
    list(silo.handle(encode(Agreed(agreed.beacon, agreed.members, signatures))))
    assert silo._beacon == b"", "one beacon a run, whatever the server shows later"
    with pytest.raises(PolicyRefusal):
        net.journals[2].note_beacon(RUN, agreed.beacon)


def test_a_silo_that_vanishes_before_it_reveals_makes_the_others_start_over(tmp_path):
    net = Net(tmp_path)
    net.on_message = once(lambda to, m: type(m).__name__ == "Commitments" and to == 1, lambda: net.kill(3))
    net.run()
    assert any(isinstance(message, Again) for _, message in net.heard)
    assert net.agreements[-1].members == (1, 2, 4, 5, 6)
    assert net.script.outcome == "finished"


def test_a_silo_reveals_a_few_times_only(tmp_path):
    net = Net(tmp_path)
    silo = net.runs[1]
    shown = 0
    for _ in range(6):
        replies = [decode(r) for r in silo.handle(encode(Again("vanished")))]
        assert [type(r) for r in replies] == [Join]
        commitments = {1: replies[0].nonce_commitment, 2: b"c" * 32}
        from fedgmi_fedml.rounds.wire import Commitments

        shown += len(list(silo.handle(encode(Commitments(commitments)))))
    assert shown == 3


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("package_version", "0.0.9", "package version differs from the server's: 0.0.9 here"),
        ("wire_version", 1, "wire version"),
        ("backend", "none", "back-end"),
        ("input_shape", (3, 8, 8), "input shape differs from the server's: (3, 8, 8) here, (1, 8, 8) there"),
        ("class_names", ("a",), "number of classes differs from the server's: 1 here, 10 there"),
        ("class_names", tuple("abcdefghij"), "list of classes"),
        ("models_schema", b"x" * 32, "model schema"),
    ],
)
def test_whoever_differs_is_told_the_first_difference(tmp_path, field, value, named):
    net = Net(tmp_path, down=(2,))
    (join,) = net.runs[2].start()
    from dataclasses import replace

    changed = replace(decode(join), **{field: value})
    out = [decode(o.payload) for o in net.server.handle(2, encode(changed)) if o.to == 2]
    assert [type(m) for m in out] == [Finish]
    assert out[0].failed
    assert named in out[0].reason


def test_the_differing_setting_is_named(tmp_path):
    net = Net(tmp_path, down=(2,))
    other = load_config("digits", [*SMALL, "train_args.epochs=7"])
    from dataclasses import replace

    (join,) = net.runs[2].start()
    changed = replace(decode(join), config_digest=other.digest(), config_items=other.item_digests())
    (out,) = [decode(o.payload) for o in net.server.handle(2, encode(changed)) if o.to == 2]
    assert "train_args.epochs" in out.reason


def test_a_join_of_another_wire_format_is_answered(tmp_path):
    import msgpack

    net = Net(tmp_path, down=(2,))
    (out,) = [o for o in net.server.handle(2, msgpack.packb(["Join", 2, 1, "0.0.1"])) if o.to == 2]
    assert "wire version 2" in decode(out.payload).reason
