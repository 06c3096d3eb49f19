"""Models and checkpoints on a real disk: round trips, damage, and death at every single step of a write."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgmi_fedml import atomic, checkpoint
from fedgmi_fedml.checkpoint import Checkpointer, load_models, read_manifest, save_models
from fedgmi_fedml.errors import CheckpointError

KILLED = 77


def models(seed: int) -> dict[str, OrderedDict[str, torch.Tensor]]:
    """Two small state dicts whose key order is not alphabetical, with a 0-d integer, an empty and a bool tensor."""
    generator = torch.Generator().manual_seed(seed)
    vae = OrderedDict(
        [("z.weight", torch.randn(3, 2, generator=generator)), ("a.bias", torch.randn(3, generator=generator))]
    )
    expert = OrderedDict(
        [
            ("running_mean", torch.randn(4, generator=generator)),
            ("num_batches_tracked", torch.tensor(seed)),
            ("empty", torch.zeros(0, 5)),
            ("flags", torch.tensor([True, False])),
            ("half", torch.ones(2, dtype=torch.bfloat16) * seed),
        ]
    )
    return {"vae-0": vae, "expert-0": expert}


def same(left: dict, right: dict) -> bool:
    """Names, key order, dtypes, shapes and bits agree."""
    return list(left) == list(right) and all(
        list(left[name]) == list(right[name])
        and all(
            left[name][key].dtype == right[name][key].dtype and torch.equal(left[name][key], right[name][key])
            for key in left[name]
        )
        for name in left
    )


def dies_at(step: int, work) -> bool:
    """Run ``work`` in a forked process that exits, without any clean-up, at its step ``step``. True if it died."""
    child = os.fork()
    if child == 0:
        seen = 0

        def stop(_name: str) -> None:
            nonlocal seen
            if seen == step:
                os._exit(KILLED)
            seen += 1

        atomic._step = stop
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, KILLED):
        raise RuntimeError(f"the child failed by itself ({status})")
    return status == KILLED


def test_round_trip_keeps_names_order_dtypes_shapes_and_meta(tmp_path: Path) -> None:
    meta = {"config_digest": "ab" * 32, "offset": [0.5, -0.25], "class_names": ["größe", "b"]}
    save_models(tmp_path / "models" / "final", models(1), meta)
    states, found = load_models(tmp_path / "models" / "final")
    assert same(states, models(1))
    assert found == meta
    assert states["expert-0"]["num_batches_tracked"].shape == ()


def test_equal_content_gives_equal_bytes_and_the_manifest_describes_the_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_models(tmp_path / name, models(3), {"n": 1})
    for file in sorted(path.name for path in (tmp_path / "a").iterdir()):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    entry = read_manifest(tmp_path / "a")["files"]["vae-0.safetensors"]
    assert entry["tensors"][0] == {"key": "z.weight", "shape": [3, 2], "dtype": "float32"}
    assert entry["bytes"] == (tmp_path / "a" / "vae-0.safetensors").stat().st_size


def test_tied_and_strided_tensors_are_saved_as_they_look(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    state = OrderedDict([("a", weight), ("tied", weight), ("turned", weight.t())])
    save_models(tmp_path / "m", {"vae-0": state}, {})
    assert same(load_models(tmp_path / "m")[0], {"vae-0": state})


@pytest.mark.parametrize("already_there", [True, False])
def test_death_at_any_step_leaves_the_old_or_the_new(tmp_path: Path, already_there: bool) -> None:
    outcomes = set()
    for step in range(200):
        place = tmp_path / str(step) / "final"
        if already_there:
            save_models(place, models(1), {"which": "old"})
        died = dies_at(step, lambda place=place: save_models(place, models(2), {"which": "new"}))
        if already_there or place.exists():
            states, meta = load_models(place)
            assert same(states, models(1 if meta["which"] == "old" else 2))
            outcomes.add(meta["which"])
        else:
            with pytest.raises(CheckpointError, match="no complete models"):
                load_models(place)
            outcomes.add("nothing")
        save_models(place, models(4), {"which": "next"})  # and the next save works from whatever was left
        assert same(load_models(place)[0], models(4))
        assert [path.name for path in place.parent.iterdir()] == ["final"]
        if not died:
            break
    assert not died
    assert step > 12
    assert outcomes == ({"old", "new"} if already_there else {"nothing", "new"})


@pytest.mark.slow
def test_death_during_the_repair_of_an_interrupted_save(tmp_path: Path) -> None:
    """A second crash, while the first one's leftovers are put in order, still loses nothing."""
    steps = 0
    while dies_at(steps, lambda steps=steps: save_models(tmp_path / f"count{steps}", models(1), {})):
        steps += 1
    for first in range(steps + 3):
        for second in range(6):
            place = tmp_path / f"{first}-{second}" / "final"
            save_models(place, models(1), {"seed": 1})
            dies_at(first, lambda place=place: save_models(place, models(2), {"seed": 2}))
            dies_at(second, lambda place=place: save_models(place, models(3), {"seed": 3}))
            states, meta = load_models(place)
            assert same(states, models(meta["seed"]))


def test_everything_is_flushed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(atomic, "_step", steps.append)
    save_models(tmp_path / "m", models(1), {})
    assert steps.count("flush") == steps.count("create") == 3
    assert steps.index("rename-new") > max(i for i, s in enumerate(steps) if s == "flush")
    assert "flush-folder" in steps[steps.index("rename-new") - 2 : steps.index("rename-new")]


def test_a_write_error_keeps_the_old_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_models(tmp_path / "m", models(1), {})

    def full(name: str) -> None:
        if name == "half-written":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic, "_step", full)
    with pytest.raises(CheckpointError, match="No space left"):
        save_models(tmp_path / "m", models(2), {})
    assert same(load_models(tmp_path / "m")[0], models(1))


def test_a_read_only_reader_sees_the_new_models_between_the_two_renames(tmp_path: Path) -> None:
    save_models(tmp_path / "final", models(1), {})
    save_models(tmp_path / "other", models(2), {})
    (tmp_path / "final").rename(tmp_path / ".final.old")
    (tmp_path / "other").rename(tmp_path / ".final.new")
    assert same(load_models(tmp_path / "final")[0], models(2))
    assert (tmp_path / ".final.new").exists()


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    changed = {
        "cut": data[: len(data) // 2],
        "flipped": data[:-1] + bytes([data[-1] ^ 1]),
        "empty": b"",
    }
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(changed[how])


@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "gone"])
def test_a_damaged_model_is_one_error_that_names_file_and_remedy(tmp_path: Path, how: str) -> None:
    save_models(tmp_path / "m", models(1), {})
    spoil(tmp_path / "m" / "expert-0.safetensors", how)
    with pytest.raises(CheckpointError, match=r"expert-0\.safetensors .*Restore") as caught:
        load_models(tmp_path / "m")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("how", ["cut", "empty", "gone"])
def test_a_damaged_manifest(tmp_path: Path, how: str) -> None:
    save_models(tmp_path / "m", models(1), {})
    spoil(tmp_path / "m" / "manifest.json", how)
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        load_models(tmp_path / "m")


def test_a_newer_format_and_a_foreign_folder_are_refused(tmp_path: Path) -> None:
    save_models(tmp_path / "m", models(1), {})
    manifest = tmp_path / "m" / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "format_version": 9}))
    with pytest.raises(CheckpointError, match="format version 9"):
        load_models(tmp_path / "m")
    manifest.write_text(json.dumps({**content, "format": "fedgmi-checkpoint"}))
    with pytest.raises(CheckpointError, match="no manifest of the kind"):
        load_models(tmp_path / "m")


@pytest.mark.parametrize("name", ["../evil", "Vae-0", "", "a/b", "manifest.json"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="model name"):
        save_models(tmp_path / "m", {name: models(1)["vae-0"]}, {})
    assert not (tmp_path / "m").exists()


def save_round(keeper: Checkpointer, number: int, phase: str = "rounds") -> None:
    keeper.save(
        (phase, number),
        models=models(number),
        progress={"round": number, "generator": [1, 2, 3], "α": 0.1 + 0.2},
        arrays={
            "parts": np.arange(number + 1, dtype=np.int64),
            "alpha": np.full((2, 2), number / 3),
            "scalar": np.array(1.5),
            "mask": np.array([True, False]),
        },
        state_digest=f"{phase}{number}",
    )


def test_checkpoints_come_back_bit_for_bit(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path / "c", "digest")
    assert keeper.latest() is None
    save_round(keeper, 3)
    found = Checkpointer(tmp_path / "c", "digest").latest()
    assert (found.phase, found.round, found.state_digest) == ("rounds", 3, "rounds3")
    assert same(found.models, models(3))
    assert found.progress == {"round": 3, "generator": [1, 2, 3], "α": 0.1 + 0.2}
    assert list(found.arrays) == ["parts", "alpha", "scalar", "mask"]
    assert found.arrays["parts"].dtype == np.int64
    assert found.arrays["scalar"].shape == ()
    assert np.array_equal(found.arrays["alpha"], np.full((2, 2), 1.0))


def test_the_last_two_rounds_stay_across_phases_and_are_found_by_their_state(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path / "c")
    for phase, number in [("warmup", 8), ("warmup", 9), ("rounds", 0), ("rounds", 1)]:
        save_round(keeper, number, phase)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["000003-rounds-0000", "000004-rounds-0001"]
    assert keeper.latest().round == 1
    assert keeper.find("rounds0").round == 0
    assert keeper.find("warmup9") is None


@pytest.mark.slow
def test_death_at_any_step_of_a_checkpoint_leaves_a_whole_round(tmp_path: Path) -> None:
    for step in range(200):
        keeper = Checkpointer(tmp_path / str(step))
        save_round(keeper, 0)
        save_round(keeper, 1)
        died = dies_at(step, lambda keeper=keeper: save_round(keeper, 2))
        found = keeper.latest()
        assert found.round in (1, 2)
        assert same(found.models, models(found.round))
        assert found.arrays["parts"].size == found.round + 1
        save_round(keeper, found.round + 1)
        assert keeper.latest().round == found.round + 1
        assert len(list((tmp_path / str(step)).iterdir())) == 2
        if not died:
            break
    assert not died
    assert step > 15


def test_a_damaged_checkpoint_names_the_one_before_as_the_way_out(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path / "c")
    save_round(keeper, 0)
    save_round(keeper, 1)
    spoil(tmp_path / "c" / "000002-rounds-0001" / "arrays.safetensors", "cut")
    with pytest.raises(CheckpointError, match=r"arrays\.safetensors.*Remove .*rounds-0001 to go on from .*rounds-0000"):
        keeper.latest()
    spoil(tmp_path / "c" / "000002-rounds-0001" / "manifest.json", "empty")
    with pytest.raises(CheckpointError, match=r"manifest\.json.*to go on from"):
        keeper.latest()


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    save_round(Checkpointer(tmp_path / "c", "a" * 64), 0)
    with pytest.raises(CheckpointError, match="another configuration"):
        Checkpointer(tmp_path / "c", "b" * 64).latest()


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    keeper = Checkpointer(tmp_path / "c")
    with pytest.raises(ValueError, match="dtype"):
        keeper.save(("rounds", 0), arrays={"names": np.array(["a"])})
    with pytest.raises(ValueError, match="not JSON compliant"):
        keeper.save(("rounds", 0), progress={"loss": float("nan")})
    with pytest.raises(ValueError, match="phase"):
        keeper.save(("../x", 0))
    assert keeper.latest() is None


@pytest.mark.parametrize("step", range(6))
def test_a_file_written_atomically_is_old_or_new(tmp_path: Path, step: int) -> None:
    path = tmp_path / "summary.json"
    atomic.write_json(path, {"n": 1})
    died = dies_at(step, lambda: atomic.write_json(path, {"n": 2}))
    assert json.loads(path.read_text())["n"] in (1, 2)
    assert died == (step < 5)
    if not died:
        assert json.loads(path.read_text())["n"] == 2
        assert len(list(tmp_path.iterdir())) == 1


def test_format_version_is_what_the_manifest_says(tmp_path: Path) -> None:
    save_models(tmp_path / "m", models(1), {})
    assert read_manifest(tmp_path / "m")["format_version"] == checkpoint.FORMAT_VERSION == 1
