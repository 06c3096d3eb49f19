"""The whole algorithm through the drivers: equal bits however it is run, and honest about what went wrong."""

import random

import pytest
from safetensors.torch import load_file

from fedgmi_fedml.errors import ConfigError, Interrupted, RunEndedEarly, RunError
from fedgmi_fedml.rounds.wire import Failed, InSession, Plan, Ready, decode

NONE = "fedgmi_args.secure.backend=none"
pytestmark = pytest.mark.timeout(300)


def models(folder, which="final"):
    return {
        f"{path.stem}/{key}": tensor
        for path in sorted((folder / "models" / which).glob("*.safetensors"))
        for key, tensor in load_file(path).items()
    }


def test_masked_and_none_agree_to_the_quantiser(small, tmp_path):
    """The oracle of the back-end: the same run without masks ends in the same models, to fixed-point rounding."""
    masked, plain = small(out=tmp_path / "masked"), small(NONE, out=tmp_path / "none")
    assert masked["secure"]["backend"] == "masked"
    assert plain["secure"]["backend"] == "none"
    assert any("secure aggregation was off" in text for text in plain["warnings"])
    ours, theirs = models(tmp_path / "masked"), models(tmp_path / "none")
    assert ours.keys() == theirs.keys()
    assert ours
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-3
    assert masked["secure"]["upload_bytes_per_parameter"] > 4.0


def test_two_masked_runs_end_in_equal_bits_although_masks_differ(small):
    assert small()["model_digests"] == small()["model_digests"]


@pytest.mark.slow
def test_workers_change_nothing_but_the_time(small):
    assert small()["model_digests"] == small(workers=2)["model_digests"]


@pytest.mark.slow
def test_another_seed_is_another_run(small):
    assert small()["model_digests"] != small("common_args.random_seed=1")["model_digests"]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.15, 0.45, 0.7, 0.95])
def test_resume_ends_in_the_same_bits(small, tmp_path, share):
    counted = []
    whole = small(NONE, fault=lambda *a: (counted.append(1), (a[2],))[1])
    stop = int(len(counted) * share)
    seen = []

    def pull_the_plug(direction, silo, payload):
        seen.append(1)
        if len(seen) == stop:
            raise KeyboardInterrupt
        return (payload,)

    with pytest.raises(Interrupted) as interrupted:
        small(NONE, out=tmp_path / "cut", fault=pull_the_plug)
    assert interrupted.value.exit_code == 130
    assert interrupted.value.folder == tmp_path / "cut"
    again = small(NONE, out=tmp_path / "cut", resume=True)
    assert again["model_digests"] == whole["model_digests"]
    lines = [(r["phase"], r["round"]) for r in small.rounds(tmp_path / "cut")]
    assert len(lines) == len(set(lines)), "a round is told twice"


def test_early_messages_come_late_and_twice_without_effect(small):
    """Every message delivered twice: nothing is counted twice."""
    twice = small(fault=lambda direction, silo, payload: (payload, payload))
    assert twice["model_digests"] == small()["model_digests"]
    assert twice["secure"]["aborted_sessions"] == 0


def test_garbage_is_ignored(small):
    noise = random.Random(0)

    def with_garbage(direction, silo, payload):
        return (noise.randbytes(50), payload, b"", payload[:-1])

    assert small(fault=with_garbage)["model_digests"] == small()["model_digests"]


def lost_after(phase, number, silo):
    """A network that loses everything of ``silo`` from the upload of one round on, for that round."""

    def fault(direction, who, payload):
        if who != silo:
            return (payload,)
        message = decode(payload)
        gone = isinstance(message, InSession) and (message.phase, message.round) == (phase, number)
        return () if gone and direction == "up" and len(payload) > 20_000 else (payload,)

    return fault


def test_a_silo_that_dies_in_its_upload_is_left_out_and_comes_back(small, tmp_path):
    done = small(out=tmp_path / "drop", fault=lost_after("rounds", 0, 3))
    lines = {(r["phase"], r["round"]): r for r in small.rounds(tmp_path / "drop")}
    assert lines["rounds", 0]["dropped"] == [3]
    assert not lines["rounds", 0]["complete"]
    assert lines["rounds", 1]["complete"], "it rejoins with the current models and fresh keys"
    assert done["rounds"] == 2
    assert any("partial" in text for text in done["warnings"])


def test_more_drops_than_allowed_end_without_a_result_and_keep_the_models(small, tmp_path):
    def fault(direction, who, payload):
        message = decode(payload)
        in_rounds = isinstance(message, (InSession, Ready)) and message.phase == "rounds"
        return () if direction == "up" and who > 2 and in_rounds else (payload,)

    with pytest.raises(RunEndedEarly, match="reached no result"):
        small("train_args.comm_round=5", out=tmp_path / "lost", fault=fault)


def test_a_silo_that_raises_is_named_with_its_error(small, monkeypatch):
    from fedgmi_fedml.rounds import local

    def broken(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(local, "train_vae", broken)
    with pytest.raises(RunError, match="silo 1.*"):
        small()


def test_k_of_n_silos_a_round(small, tmp_path):
    done = small("train_args.client_num_per_round=5", out=tmp_path / "k")
    assert done["secure"]["cohort_size"] == 5
    assert [r for r in small.rounds(tmp_path / "k") if r["phase"] == "rounds" and r["complete"]]


@pytest.mark.slow
def test_partition_every_second_round(small):
    once = small("train_args.partition_every=2", "train_args.comm_round=3")
    assert once["rounds"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "fedgmi_args.affinity.score=reconstruction",
        "fedgmi_args.affinity.score=iwae",
        "fedgmi_args.affinity.proportions=hard",
        "fedgmi_args.affinity.temperature=auto",
        "fedgmi_args.affinity.offset=true",
        "fedgmi_args.initialisation.selection=random",
        "fedgmi_args.initialisation.warmup_rounds=0",
        "fedgmi_args.components=3 fedgmi_args.initialisation.candidates=3",
        "fedgmi_args.components=1",
        "train_args.client_optimizer=sgd",
        "train_args.mixed_precision=true",
        "fedgmi_args.secure.rules.verified_sums=true",
        "fedgmi_args.secure.cohort_nonces=system",
        "validation_args.evaluate_oracle=true",
        "validation_args.evaluate_baselines=[local,fedavg]",
        "tracking_args.enable_tensorboard=true",
    ],
)
def test_every_option_works(small, change):
    assert small(*change.split(" "))["rounds"] == 2


def test_early_stopping_and_best_models(small, tmp_path):
    """A silly learning rate makes the score worse: the run stops, best and final differ, both are saved."""
    done = small(
        "train_args.comm_round=8",
        "train_args.early_stopping_rounds=1",
        "train_args.learning_rate=0.02",
        NONE,
        out=tmp_path / "early",
    )
    assert done["rounds"] <= 8
    assert done["best_round"] <= done["rounds"] - 1
    assert models(tmp_path / "early", "best").keys() == models(tmp_path / "early", "final").keys()


def test_a_used_folder_is_refused_and_so_is_resuming_nothing(small, tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match="not empty"):
        small(out=tmp_path / "used")
    with pytest.raises(RunError, match="nothing|no whole round"):
        small(out=tmp_path / "new", resume=True)
    assert [p.name for p in (tmp_path / "used").iterdir()] == ["thesis.tex"]


def test_too_few_silos_are_refused_before_anything_starts(small, tmp_path):
    with pytest.raises(ConfigError, match="min_contributors|gate"):
        small("train_args.client_num_in_total=3", "train_args.client_num_per_round=3", out=tmp_path / "few")
    assert not (tmp_path / "few").exists()


def test_what_the_server_is_told_holds_no_count(small, tmp_path):
    """Every message to the server outside the secure sessions: only these kinds, and nothing that varies with data."""
    kinds = set()

    def watch(direction, silo, payload):
        message = decode(payload)
        if direction == "up":
            kinds.add(type(message).__name__)
            assert not isinstance(message, Failed)
        if isinstance(message, Plan):
            assert message.cohort == tuple(sorted(message.cohort))
        return (payload,)

    small(fault=watch)
    assert kinds == {"Join", "Reveal", "Witness", "Ready", "InSession", "Finished"}


@pytest.mark.slow
def test_a_silo_lost_after_the_totals_beyond_the_drops_allowed(small, tmp_path):
    """Two silos vanish for good after the totals of a round, one more than may drop: the repeat leaves out as many as
    it takes not to single anyone out, or reaches nothing; the run ends either way, with whole models."""
    gone = set()

    def fault(direction, who, payload):
        message = decode(payload)
        uploads = isinstance(message, InSession) and message.phase == "rounds" and len(payload) > 20_000
        if direction == "up" and who in (2, 5) and uploads:
            gone.add(who)
        return () if who in gone and direction == "up" else (payload,)

    changes = ("train_args.client_num_in_total=9", "train_args.client_num_per_round=9", "train_args.comm_round=4")
    done = small(*changes, "data_args.silo_mixture.samples_per_silo=40", out=tmp_path / "two", fault=fault)
    lines = [r for r in small.rounds(tmp_path / "two") if r["phase"] == "rounds"]
    assert gone == {2, 5}
    assert lines[0]["attempts"] > 1
    assert any(r["complete"] and not r["failed_sessions"] for r in lines)
    assert done["secure"]["aborted_sessions"] >= 1


@pytest.mark.slow
def test_many_cohorts_side_by_side(small):
    """Six cohorts of four at once: the models that each starts from and ends in are at hand when they are needed."""
    silos = ("train_args.client_num_in_total=24", "train_args.client_num_per_round=24")
    more = ("data_args.silo_mixture.samples_per_silo=30", "fedgmi_args.initialisation.candidates=6")
    assert small(*silos, *more, "train_args.comm_round=1")["rounds"] == 1


def test_a_finished_run_is_not_resumed(small, tmp_path):
    before = small(NONE, out=tmp_path / "done")
    assert small(NONE, out=tmp_path / "done", resume=True) == before
