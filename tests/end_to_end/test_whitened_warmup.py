"""The warm-up with three components: secure sums of products of losses, whole or resumed in its middle."""

import pytest

from fedgmi_fedml.errors import Interrupted

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]
THREE = (
    "fedgmi_args.components=3",
    "fedgmi_args.initialisation.candidates=4",
    "fedgmi_args.initialisation.warmup_rounds=3",
    "data_args.silo_mixture={kind: dominant, dominant: 0.6, components: [{rotate: 0}, {rotate: 90}, {rotate: 180}], "
    "samples_per_silo: 60}",
    "train_args.comm_round=1",
)


def test_masked_sums_lead_where_sums_in_clear_do(small):
    """The products go through the protocol as they are; and they do have a say."""
    masked, plain, scaled = (
        small(*THREE, *more)
        for more in (
            (),
            ("fedgmi_args.secure.backend=none",),
            ("fedgmi_args.secure.backend=none", "fedgmi_args.initialisation.warmup_whitening=false"),
        )
    )
    assert masked["alpha_mae"] == pytest.approx(plain["alpha_mae"], abs=1e-3)
    assert plain["model_digests"] != scaled["model_digests"]


def test_resumed_in_the_warm_up_ends_in_the_same_bits(small, tmp_path):
    warm = []

    def pull_the_plug(direction, silo, payload):
        steps = small.rounds(tmp_path / "cut") if (tmp_path / "cut" / "rounds.jsonl").exists() else []
        if sum(step["phase"] == "warmup" for step in steps) >= 2:
            warm.append(len(steps))
            raise KeyboardInterrupt
        return (payload,)

    whole = small(*THREE)
    with pytest.raises(Interrupted):
        small(*THREE, out=tmp_path / "cut", fault=pull_the_plug)
    assert warm, "the run was cut elsewhere"
    again = small(*THREE, out=tmp_path / "cut", resume=True)
    assert again["model_digests"] == whole["model_digests"]
