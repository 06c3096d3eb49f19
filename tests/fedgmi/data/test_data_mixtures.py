"""Mixture proportions, components, splits and published layouts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmi_fedml.data import LAYOUTS, load_federation
from fedgmi_fedml.data.layouts import Mixture, resolve_mixture
from fedgmi_fedml.data.mixtures import counts, dominant, linear, proportions, random, two_level
from fedgmi_fedml.data.splits import hold_out, part_sizes
from fedgmi_fedml.errors import ConfigError, DataError


def test_linear_is_the_papers_formula():
    alpha = linear(10, 2)
    np.testing.assert_allclose(alpha[:, 1], (np.arange(10) + 0.5) / 10)
    np.testing.assert_allclose(linear(7, 4).sum(axis=1), 1)
    assert linear(30, 4).argmax(axis=1).tolist() == sorted(linear(30, 4).argmax(axis=1).tolist())
    assert linear(3, 1).tolist() == [[1], [1], [1]]


def test_two_level_is_half_and_half():
    alpha = two_level(20, 2, 0.3)
    np.testing.assert_allclose(alpha[:10], [[0.3, 0.7]] * 10)
    np.testing.assert_allclose(alpha[10:], [[0.7, 0.3]] * 10)
    four = two_level(8, 4, 0.1)
    np.testing.assert_allclose(np.sort(four, axis=1), [[0.1 / 3] * 3 + [0.9]] * 8)
    assert np.bincount(four.argmax(axis=1)).tolist() == [2, 2, 2, 2]


def test_dominant_cycles():
    alpha = dominant(5, 4, 0.6)
    assert alpha.argmax(axis=1).tolist() == [0, 1, 2, 3, 0]
    np.testing.assert_allclose(alpha.max(axis=1), 0.6)
    np.testing.assert_allclose(alpha.sum(axis=1), 1)


def test_random_cuts_are_a_simplex_and_seeded():
    one, two = (random(200, 3, np.random.default_rng(4)) for _ in range(2))
    assert (one == two).all()
    assert (one >= 0).all()
    np.testing.assert_allclose(one.sum(axis=1), 1)
    np.testing.assert_allclose(one.mean(axis=0), 1 / 3, atol=0.06)


def test_dirichlet_concentration_matters():
    pure = proportions(Mixture("dirichlet", concentration=0.05), 50, 4, 0).max(axis=1).mean()
    even = proportions(Mixture("dirichlet", concentration=50.0), 50, 4, 0).max(axis=1).mean()
    assert pure > 0.9
    assert even < 0.4


@pytest.mark.parametrize(
    ("rows", "word"), [([[0.5, 0.6]], "sum to 1"), ([[0.2, 0.3, 0.5]], "2 numbers"), ([], "2 numbers")]
)
def test_explicit_proportions_are_checked(rows, word):
    with pytest.raises(ConfigError, match=word):
        proportions(Mixture("explicit", proportions=rows), 4, 2, 0)


def test_explicit_rows_are_repeated():
    alpha = proportions(Mixture("explicit", proportions=[[1, 0], [0.25, 0.75]]), 3, 2, 0)
    assert alpha.tolist() == [[1, 0], [0.25, 0.75], [1, 0]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 500), st.lists(st.floats(0.001, 1), min_size=1, max_size=6))
def test_counts_are_whole_and_near(total, weights):
    alpha = np.array(weights) / sum(weights)
    held = counts(alpha, total)
    assert held.sum() == total
    assert (held >= 0).all()
    assert (np.abs(held - alpha * total) < 1 + 1e-6).all()


def test_samples_count_training_and_nothing_is_used_twice(make_config, image_npz, numbers_of):
    config = make_config(4, dataset="npz", data_path=str(image_npz), mixture={
        "samples_per_silo": 60, "components": [{"rotate": 0}, {"rotate": 180}]})  # fmt: skip
    federation = load_federation(config)
    assert [len(silo.x_train) for silo in federation.silos] == [60] * 4
    sizes = part_sizes(60, 0.1, 0.2)
    assert sizes == {"train": 60, "val": 9, "test": 17}
    assert all(len(silo.x_test) == sizes["test"] and len(silo.x_val) == sizes["val"] for silo in federation.silos)
    numbers = np.concatenate(numbers_of(federation))
    assert len(set(numbers.tolist())) == len(numbers) == 4 * 86
    test = np.concatenate(numbers_of(federation)[2::3])
    assert (test >= 400).all(), "test images come from the source's test part"


def test_true_components_labels_and_pixels_agree(make_config, image_npz, numbers_of):
    config = make_config(3, dataset="npz", data_path=str(image_npz), mixture={
        "samples_per_silo": 50, "components": [{"rotate": 0}, {"rotate": 180}]})  # fmt: skip
    federation = load_federation(config)
    for i, silo in enumerate(federation.silos):
        turned = silo.x_train[:, 0, 5, 5] == 1.0
        assert torch_equal(turned.long(), silo.true_component_train)
        assert federation.true_alpha[i, 1] == pytest.approx(float(turned.float().mean()))
        assert abs(federation.true_alpha[i, 1] - (i + 0.5) / 3) <= 0.5 / 50 + 1e-9
        assert (silo.y_train.numpy() == numbers_of(federation)[3 * i] % 5).all()
        assert silo.x_train.min() >= 0
        assert silo.x_train.max() <= 1


def torch_equal(a, b):
    return bool((a == b).all())


def test_seed_decides_everything(make_config, image_npz):
    def load(seed):
        return load_federation(make_config(4, seed, dataset="npz", data_path=str(image_npz), mixture={
            "kind": "random", "samples_per_silo": [20, 60]}))  # fmt: skip

    one, again, other = load(3), load(3), load(4)
    assert all(torch_equal(a.x_train, b.x_train) for a, b in zip(one.silos, again.silos, strict=True))
    assert one.true_alpha.tolist() == again.true_alpha.tolist() != other.true_alpha.tolist()
    assert len({len(silo.x_train) for silo in one.silos}) > 1
    assert all(20 <= len(silo.x_train) <= 60 for silo in one.silos)


def test_only_some_silos_are_filled(make_config, image_npz):
    config = make_config(3, dataset="npz", data_path=str(image_npz), mixture={"samples_per_silo": 40})
    whole, some = load_federation(config), load_federation(config, only={1})
    assert [len(silo.x_train) for silo in some.silos] == [0, 40, 0]
    assert torch_equal(whole.silos[1].x_train, some.silos[1].x_train)
    assert (whole.true_alpha == some.true_alpha).all()
    assert some.silos[0].x_train.shape[1:] == (1, 6, 6)


def test_as_many_as_there_are(make_config, image_npz):
    federation = load_federation(make_config(4, dataset="npz", data_path=str(image_npz)))
    sizes = [len(silo.x_train) for silo in federation.silos]
    assert len(set(sizes)) == 1
    assert 80 < sizes[0] <= 100
    config = make_config(4, dataset="npz", data_path=str(image_npz), mixture={"samples_per_silo": sizes[0] + 1})
    with pytest.raises(DataError, match=r"images\.npz.*samples_per_silo"):
        load_federation(config)


def test_more_silos_than_samples(make_config, tmp_path):
    np.savez(tmp_path / "few.npz", x_train=np.full((5, 4, 4), 99, np.uint8), y_train=np.arange(5) % 2)
    with pytest.raises(DataError, match="too few samples to give each of 9 silos"):
        load_federation(make_config(9, dataset="npz", data_path=str(tmp_path / "few.npz")))


def test_too_many_samples_names_the_component(make_config, image_npz):
    config = make_config(4, dataset="npz", data_path=str(image_npz), mixture={
        "samples_per_silo": 80, "components": [{"classes": [0]}, {"classes": [1, 2, 3, 4]}]})  # fmt: skip
    with pytest.raises(DataError, match=r"component 0 \(classes \(?\[?0.*80 train"):
        load_federation(config)


def test_class_subsets(make_config, image_npz):
    config = make_config(4, dataset="npz", data_path=str(image_npz), mixture={
        "kind": "dominant", "samples_per_silo": 30,
        "components": [{"classes": [0, 1]}, {"classes": ["2", "3"]}]})  # fmt: skip
    federation = load_federation(config)
    for silo in federation.silos:
        assert set(silo.y_train[silo.true_component_train == 0].tolist()) <= {0, 1}
        assert set(silo.y_train[silo.true_component_train == 1].tolist()) <= {2, 3}
    assert federation.shape.classes == 5


@pytest.mark.parametrize(
    ("component", "word"),
    [
        ({"classes": ["nought"]}, "'nought' is no class"),
        ({"classes": [7]}, "7 is no class"),
        ({"classes": "upper"}, "none of the classes"),
        ({"flip": True}, "tables"),
        ({"where": {"hospital": 1}}, "hospital"),
    ],
)
def test_components_that_do_not_fit_the_source(make_config, image_npz, component, word):
    config = make_config(2, dataset="npz", data_path=str(image_npz), mixture={"components": [component]})
    with pytest.raises((ConfigError, DataError), match=word):
        load_federation(config)


def test_columns_that_a_source_lacks(make_config):
    config = make_config(2, mixture={"components": [{"where": {"hospital": 1}}]})
    with pytest.raises(DataError, match="digits: has no column 'hospital'"):
        load_federation(config)


def test_quarter_turns_need_square_images(make_config, tmp_path):
    np.savez(tmp_path / "wide.npz", x_train=np.full((50, 4, 6), 200, np.uint8), y_train=np.arange(50) % 2)
    config = make_config(2, dataset="npz", data_path=str(tmp_path / "wide.npz"))
    with pytest.raises(ConfigError, match="not square"):
        load_federation(config)


def test_inverted(make_config, image_npz):
    config = make_config(2, dataset="npz", data_path=str(image_npz), mixture={
        "samples_per_silo": 20, "components": [{}, {"invert": True}]})  # fmt: skip
    silo = load_federation(config).silos[0]
    dark = silo.x_train[:, 0, 0, 0] == 0.0
    assert torch_equal(dark.long(), silo.true_component_train)


def test_where_chooses_by_a_column(make_config, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.full((90, 3, 3), 99, np.uint8), y=np.arange(90) % 2, age=np.arange(90))
    config = make_config(2, dataset="npz", data_path=str(tmp_path / "a.npz"), mixture={
        "samples_per_silo": 10,
        "components": [{"where": {"age": {"max": 44}}}, {"where": {"age": {"min": 45}}}]})  # fmt: skip
    assert load_federation(config).true_alpha.shape == (2, 2)


@pytest.mark.parametrize(
    "components", [[{"classes": "upper"}, {"classes": "lower"}], [{"classes": list("ABYZ")}, {"classes": list("abyz")}]]
)
def test_letters_share_labels(make_config, tmp_path, components):
    names = np.array(list("019ABYZabyz"))
    y = np.arange(440) % 11
    x = np.zeros((440, 4, 4), dtype=np.uint8)
    x[:, 0, 0], x[:, 1, 1] = y * 20 + 20, 255
    np.savez(tmp_path / "chars.npz", x=x, y=y, classes=names, test_mask=np.arange(440) % 4 == 0)
    config = make_config(2, dataset="npz", data_path=str(tmp_path / "chars.npz"), mixture={
        "samples_per_silo": 40, "components": components})  # fmt: skip
    federation = load_federation(config)
    assert federation.class_names == tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    for silo in federation.silos:
        stored = np.round(silo.x_train[:, 0, 0, 0].numpy() * 255).astype(int) // 20 - 1
        written = names[stored]
        assert [federation.class_names[label] for label in silo.y_train] == [name.upper() for name in written]
        assert (np.char.islower(written) == silo.true_component_train.numpy().astype(bool)).all()


def test_layouts_are_fedsofts():
    assert LAYOUTS["fedsoft_digits_linear"].silos == 100
    assert LAYOUTS["fedsoft_digits_linear"].samples == (100, 200)
    assert LAYOUTS["fedsoft_cifar10_30_70"].silos == 20
    assert LAYOUTS["fedsoft_cifar10_30_70"].samples == (3000, 3500)
    assert LAYOUTS["fedsoft_letters_10_90"].level == 0.1
    assert len(LAYOUTS["fedsoft_digits_4rotations_random"].components) == 4


def test_layouts_are_those_of_the_configuration():
    from fedgmi_fedml.config import sections

    assert set(sections.LAYOUTS) == set(LAYOUTS)


def test_layout_decides_and_can_be_shortened(make_config):
    mixture, notes = resolve_mixture(make_config(100, mixture={"layout": "fedsoft_digits_30_70"}))
    assert (mixture.kind, mixture.level, mixture.samples, notes) == ("two_level", 0.3, (100, 200), ())
    config = make_config(10, mixture={"layout": "fedsoft_digits_linear", "samples_per_silo": 50})
    mixture, notes = resolve_mixture(config)
    assert mixture.samples == 50
    assert len(notes) == 2
    assert "100 silos, this run 10" in notes[0]
    assert load_federation(config).notes == notes


def test_unknown_layout_and_missing_group():
    given = SimpleNamespace(kind="linear", level=0.3, concentration=1, dominant=0.6, proportions=None, group=None,
                            components=(), samples_per_silo=None, layout="fedsoft_linear")  # fmt: skip
    with pytest.raises(ConfigError, match="fedsoft_digits_linear"):
        resolve_mixture(SimpleNamespace(data_args=SimpleNamespace(silo_mixture=given)))


def test_hold_out_is_by_class():
    y = np.array([0] * 80 + [1] * 20)
    kept, held = hold_out(y, 10, np.random.default_rng(0))
    assert len(held) == 10
    assert len(kept) == 90
    assert not set(kept) & set(held)
    assert (y[held] == 1).sum() == 2
    assert [len(part) for part in hold_out(y[:0], 0, np.random.default_rng(0))] == [0, 0]


def test_progress_is_told(make_config, image_npz):
    seen = []
    config = make_config(3, dataset="npz", data_path=str(image_npz), mixture={"samples_per_silo": 10})
    load_federation(config, lambda *step: seen.append(step))
    assert seen == [("preparing silos", i, 3) for i in (1, 2, 3)]


def test_a_layout_may_use_an_image_once_for_each_component(make_config, image_npz, numbers_of):
    mixture = {"layout": "fedsoft_digits_linear", "samples_per_silo": 60}
    config = make_config(10, dataset="npz", data_path=str(image_npz), mixture=mixture)
    federation = load_federation(config)
    assert "once for each component" in federation.notes[-1]
    numbers = numbers_of(federation)
    true = [silo.true_component_train.numpy() for silo in federation.silos]
    trained = [set(), set()]
    for i, component in enumerate(true):
        for which in (0, 1):
            mine = federation.silos[i].x_train[component == which]
            stored = np.round(mine[:, 0].numpy() * 255).astype(int)
            upright = stored if which == 0 else np.rot90(stored, -1, axes=(1, 2))
            seen = (upright[:, 2, 2] * 200 + upright[:, 3, 3]).tolist()
            assert len(set(seen)) == len(seen)
            assert not trained[which] & set(seen)
            trained[which] |= set(seen)
    assert trained[0] & trained[1], "some images serve both components"
    assert len(numbers) == 30
    with pytest.raises(DataError, match="no sample is used twice"):
        load_federation(make_config(10, dataset="npz", data_path=str(image_npz), mixture={"samples_per_silo": 60}))


def test_reuse_never_mixes_parts(make_config, image_npz):
    from fedgmi_fedml.data.components import build_components
    from fedgmi_fedml.data.sources import load_pool, make_request
    from fedgmi_fedml.data.splits import share_out

    pool = load_pool(make_request(make_config(dataset="npz", data_path=str(image_npz))))
    components = build_components([{"rotate": 0}, {"rotate": 90}], pool)
    plans = share_out(pool, components, linear(10, 2), [{"train": 60, "val": 15, "test": 20}] * 10, 0, reuse=True)
    held = {
        part: {(draw.source, at) for plan in plans for draw in plan[part] for at in draw.index.tolist()}
        for part in ("train", "val", "test")
    }
    assert not held["train"] & held["val"]
    assert not held["train"] & held["test"]
    assert not held["val"] & held["test"]
    assert all(held.values())
