"""Tables: CSV files, missing values, and standardisation by securely summed moments."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgmi_fedml.data import (
    SiloData,
    TableMoments,
    TableSchema,
    apply_moments,
    load_federation,
    load_silo,
    summed_statistics,
    table_statistics,
    table_statistics_spec,
)
from fedgmi_fedml.data.table import CategoricalColumn, NumericColumn
from fedgmi_fedml.errors import ConfigError, DataError

COLUMNS = {"age": {"range": [0, 120], "missing": True}, "weight": [20, 200], "smoker": ["no", "yes", "former"]}
OPTIONS = {"label": "outcome", "classes": ["well", "ill"], "columns": COLUMNS}
TEXT = """age,weight,smoker,outcome
40,70,no,well
,90.5,yes,ill
60,80,former,ill
NA,60,no,well
"""


@pytest.fixture
def write(tmp_path):
    def write_text(text: str = TEXT, name: str = "ward.csv") -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write_text


@pytest.fixture
def own(make_config, write):
    """A silo of the text, everything in its training part."""

    def load(text: str = TEXT, name: str = "ward", **options) -> SiloData:
        config = make_config(dataset="csv", data_options=OPTIONS | options, validation_share=0.0, test_share=0.0)
        return load_silo(config, write(text, f"{name}.csv"), name=name)

    return load


def one_silo(schema: TableSchema, raw: np.ndarray, name: str = "silo") -> SiloData:
    empty, nothing = torch.zeros(0, schema.width), torch.zeros(0, dtype=torch.long)
    parts = {"train": raw, "val": raw[:0], "test": raw[:0]}
    return SiloData(name, empty, nothing, empty, nothing, empty, nothing, schema=schema, raw=parts, standardised=False)


def test_a_table_waits_for_its_moments(own):
    silo = own()
    assert silo.needs_moments
    assert silo.x_train.shape == (4, 6)
    assert torch.isnan(silo.x_train).all(), "nothing can train on a table that is not standardised"
    assert silo.shape.value_range == "real"
    assert silo.schema.features == ("age", "weight", "age missing", "smoker=no", "smoker=yes", "smoker=former")


def test_features_by_hand(own):
    silo = own()
    moments = TableMoments.from_totals(silo.schema, table_statistics(silo))
    done = apply_moments(silo, moments)
    assert not done.needs_moments
    rows = {tuple(np.round(row, 4)) for row in done.x_train.numpy().tolist()}
    weights = np.array([70, 90.5, 80, 60])
    w = (weights - weights.mean()) / weights.std()
    no, yes = (0.5 / 0.5), (0.75 / np.sqrt(0.25 * 0.75))
    low = -0.25 / np.sqrt(0.25 * 0.75)
    expected = [
        (-1.0, w[0], -1.0, no, low, low),
        (0.0, w[1], 1.0, -no, yes, low),
        (1.0, w[2], -1.0, -no, low, yes),
        (0.0, w[3], 1.0, no, low, low),
    ]
    assert rows == {tuple(np.round(row, 4)) for row in expected}
    assert done.y_train.sum() == 2
    assert silo.needs_moments, "apply_moments returns a new silo"


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_summed_moments_are_those_of_all_rows_together(silos, seed):
    rng = np.random.default_rng(seed)
    schema = TableSchema(
        (NumericColumn("a", -1000, 5000, True), NumericColumn("b", 0, 1)), (CategoricalColumn("c", ("x", "y"), True),)
    )
    raws = []
    for count in rng.integers(0, 30, silos):
        raw = np.stack([rng.normal(37, 2, count), rng.random(count), rng.integers(0, 2, count).astype(float)], axis=1)
        raw[rng.random(count) < 0.3, 0] = np.nan
        raw[rng.random(count) < 0.3, 2] = np.nan
        raws.append(raw)
    pooled = np.concatenate(raws)
    totals = summed_statistics(one_silo(schema, raw) for raw in raws)
    steps = np.array([spec.resolution for spec in table_statistics_spec(schema)])
    moments = TableMoments.from_totals(schema, np.round(np.array(totals) / steps) * steps)
    present = pooled[~np.isnan(pooled[:, 0]), 0]
    if len(present) > 2:
        assert moments.mean[0] == pytest.approx(present.mean(), abs=1e-4)
        assert moments.spread[0] == pytest.approx(present.std(), rel=0.01)
    if len(pooled):
        np.testing.assert_allclose(moments.mean[2:], schema.one_hot(pooled).mean(axis=0), atol=1e-9)
    assert np.isfinite(moments.features(pooled)).all()
    assert min(moments.spread) > 0


def test_statistics_keep_to_their_bounds(own):
    silo = own(max_rows=4)
    spec, values = table_statistics_spec(silo.schema), table_statistics(silo)
    assert len(spec) == len(values) == len({item.name for item in spec})
    assert all(abs(value) <= item.bound for item, value in zip(spec, values, strict=True))
    assert all(item.bound == 4 for item in spec)
    assert values[0] == 4
    with pytest.raises(DataError, match=r"big.*max_rows \(3\)"):
        table_statistics(own(max_rows=3, name="big"))


def test_statistics_fit_a_secure_session_of_any_size(own):
    from secure.fixedpoint import check_capacity, decode_statistic, encode_statistic
    from secure.types import Block, VectorSpec

    silo = own()
    spec = table_statistics_spec(silo.schema)
    check_capacity(VectorSpec(1, (Block("none", 0, 8.0, 0),), (), spec), 128)
    values = table_statistics(silo)
    sums = [
        decode_statistic(item, 5 * encode_statistic(item, value), 5) for item, value in zip(spec, values, strict=True)
    ]
    np.testing.assert_allclose(sums, 5 * np.array(values), atol=1e-8)


def test_printed_forms_hide_the_values(own):
    silo = own()
    moments = TableMoments.from_totals(silo.schema, table_statistics(silo))
    for shown in (repr(silo), repr(apply_moments(silo, moments)), repr(moments)):
        assert "values hidden" in shown
        assert "tensor" not in shown
        assert "70" not in shown


def test_an_empty_silo_adds_nothing(own):
    empty = own(TEXT.splitlines()[0] + "\n", name="empty")
    assert set(table_statistics(empty)) == {0.0}
    full = own()
    totals = summed_statistics([full, empty])
    assert totals == table_statistics(full)
    assert apply_moments(empty, TableMoments.from_totals(full.schema, totals)).x_train.shape == (0, 6)
    assert TableMoments.from_totals(full.schema, table_statistics(empty)).spread[0] > 0


def test_constant_columns_stay_finite():
    schema = TableSchema((NumericColumn("a", 0, 1e6), NumericColumn("b", 3, 3)))
    raw = np.tile([123456.7, 3.0], (50, 1))
    moments = TableMoments.from_totals(schema, table_statistics(one_silo(schema, raw)))
    assert np.abs(moments.features(raw)).max() < 1e-3
    other = TableMoments.from_totals(schema, summed_statistics(one_silo(schema, raw[:n]) for n in (1, 3, 7) * 10))
    assert np.abs(other.features(raw)).max() < 1e-3


def test_moments_survive_a_file(own):
    silo = own()
    moments = TableMoments.from_totals(silo.schema, table_statistics(silo))
    again = TableMoments.from_dict(json.loads(json.dumps(moments.to_dict())))
    assert again == moments
    assert torch.equal(apply_moments(silo, again).x_train, apply_moments(silo, moments).x_train)


def test_moments_of_another_table_are_refused(own):
    silo = own()
    other = TableSchema((NumericColumn("a", 0, 1),))
    with pytest.raises(DataError, match="other columns"):
        apply_moments(silo, TableMoments.from_totals(other, (0.0,) * 4))
    with pytest.raises(DataError, match="disagree"):
        TableMoments.from_totals(silo.schema, (0.0,) * 4)
    with pytest.raises(DataError, match="disagree"):
        TableMoments.from_totals(silo.schema, (float("nan"),) * len(table_statistics_spec(silo.schema)))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (("40,70", "forty,70"), r"line 2, column 'age': 'forty' is no number"),
        (("40,70", "140,70"), r"line 2, column 'age': '140' is outside the range \[0, 120\]"),
        (("40,70", "inf,70"), "'inf' is outside the range"),
        (("60,80", "60,"), r"line 4, column 'weight': has no value; write missing: true"),
        (("former", "pipe"), r"'pipe' is none of the values.*no, yes, former"),
        (("no,well", "no,dead"), r"label 'dead' is no class \(well, ill\)"),
        (("no,well", "no,"), r"line 2: has no label"),
        (("no,well", "no;well"), r"line 2: has 3 fields, the header 4.*delimiter"),
        (("weight", "wieght"), r"no column 'weight'.*did you mean 'wieght'"),
        (("outcome", "result"), r"no column 'outcome'"),
        (("weight", "age"), "named once"),
    ],
)
def test_bad_tables_name_file_line_and_remedy(own, change, word):
    with pytest.raises(DataError, match=word) as caught:
        own(TEXT.replace(*change, 1))
    assert str(caught.value).startswith("ward: ")
    assert "ward.csv" in str(caught.value)


def test_unreadable_tables(own, write, make_config, tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01" * 50)
    config = make_config(dataset="csv", data_options=OPTIONS)
    with pytest.raises(DataError, match=r"binary\.csv: is no readable CSV"):
        load_silo(config, tmp_path / "binary.csv")
    with pytest.raises(DataError, match="header"):
        own("")
    with pytest.raises(DataError, match="no such file"):
        load_silo(config, tmp_path / "none.csv")


def test_a_deployment_must_declare_its_columns(make_config, write):
    path = write()
    for missing in ("columns", "classes"):
        options = {key: value for key, value in OPTIONS.items() if key != missing}
        with pytest.raises(DataError, match=f"data_options.{missing}"):
            load_silo(make_config(dataset="csv", data_options=options), path)


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({}, "at least one column"),
        ({"age": [120, 0]}, r"columns\.age: \[120, 0\] is no range"),
        ({"age": {"missing": True}}, "either range"),
        ({"age": {"range": [0, 1], "values": ["a"]}}, "either range"),
        ({"sex": ["f", "f"]}, "different names"),
    ],
)
def test_bad_declarations(own, columns, word):
    with pytest.raises((ConfigError, DataError), match=word):
        own(columns=columns)


def test_a_simulation_takes_columns_from_its_file(make_config, write):
    rng = np.random.default_rng(0)
    lines = ["age,sex,ward,kind,held_out"]
    for i in range(120):
        age = "" if i % 10 == 0 else f"{rng.normal(50, 9):.1f}"
        lines.append(f"{age},{'fm'[i % 2]},{'north' if i < 80 else 'south'},{i % 3},{int(i % 4 == 0)}")
    options = {"label": "kind", "test_mask": "held_out"}
    config = make_config(2, dataset="csv", data_path=write("\n".join(lines)), data_options=options,
                         mixture={"kind": "natural", "group": "ward"})  # fmt: skip
    federation = load_federation(config)
    assert federation.schema.features == ("age", "age missing", "sex=f", "sex=m")
    assert federation.class_names == ("0", "1", "2")
    assert [silo.name for silo in federation.silos] == ["north", "south"]
    assert [len(silo.x_test) for silo in federation.silos] == [20, 10]
    assert federation.needs_moments
    moments = TableMoments.from_totals(federation.schema, summed_statistics(federation.silos))
    x = torch.cat([apply_moments(silo, moments).x_train for silo in federation.silos])
    present = x[x[:, 1] < 0, 0]
    assert abs(float(present.mean())) < 1e-5
    assert float(present.std(correction=0)) == pytest.approx(1, abs=1e-4)


def test_ids_are_no_categories(make_config, write):
    text = "id,kind\n" + "".join(f"patient-{i},{i % 2}\n" for i in range(100))
    config = make_config(2, dataset="csv", data_path=write(text), data_options={"label": "kind"},
                         mixture={"components": [{}]})  # fmt: skip
    with pytest.raises(DataError, match=r"'id' has 100 different texts.*ignore"):
        load_federation(config)


def test_class_numbers_sort_as_numbers(make_config, write):
    text = "a,kind\n" + "".join(f"{i},{i % 12}\n" for i in range(120))
    config = make_config(2, dataset="csv", data_path=write(text), data_options={"label": "kind"},
                         mixture={"components": [{}]})  # fmt: skip
    assert load_federation(config).class_names == tuple(str(i) for i in range(12))


@pytest.mark.parametrize(("dataset", "shape", "classes"), [("breast_cancer", (30,), 2), ("wine", (13,), 3)])
def test_scikit_learns_tables(make_config, dataset, shape, classes):
    config = make_config(4, dataset=dataset, mixture={"components": [{}, {"flip": True, "shift": 1.0}]})
    federation = load_federation(config)
    assert federation.shape.input_shape == shape
    assert federation.shape.classes == classes
    moments = TableMoments.from_totals(federation.schema, summed_statistics(federation.silos))
    silos = [apply_moments(silo, moments) for silo in federation.silos]
    x = torch.cat([silo.x_train for silo in silos])
    assert torch.allclose(x.mean(dim=0), torch.zeros(shape), atol=1e-3)
    assert torch.allclose(x.std(dim=0, correction=0), torch.ones(shape), atol=1e-2)
    true = torch.cat([silo.true_component_train for silo in silos])
    apart = x[true == 1].mean(dim=0) - x[true == 0].mean(dim=0)
    assert (apart > 0.4).all(), "the second laboratory reads higher in every column"


def test_tables_have_components_of_their_own(make_config):
    with pytest.raises(ConfigError, match="is a table; use flip"):
        load_federation(make_config(2, dataset="breast_cancer"))
    with pytest.raises((ConfigError, DataError), match="bernoulli.*gaussian"):
        load_federation(make_config(2, dataset="wine", likelihood="bernoulli", mixture={"components": [{}]}))


def test_npz_tables(make_config, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 3))
    x[5, 1] = np.nan
    np.savez(tmp_path / "t.npz", x_train=x, y_train=np.arange(60) % 2)
    path = str(tmp_path / "t.npz")
    federation = load_federation(make_config(2, dataset="npz", data_path=path, mixture={"components": [{}]}))
    assert federation.schema.features == ("0", "1", "2", "1 missing")
    options = {"classes": 2, "columns": {"0": [-9, 9], "1": {"range": [-9, 9], "missing": True}, "2": [-9, 9]}}
    assert load_silo(make_config(dataset="npz", data_options=options), path).x_train.shape == (42, 4)
    options["columns"]["1"] = [-9, 9]
    with pytest.raises(DataError, match="column '1' holds NaN"):
        load_silo(make_config(dataset="npz", data_options=options), path)
    options["columns"]["1"] = {"range": [-0.1, 0.1], "missing": True}
    with pytest.raises(DataError, match="outside the range"):
        load_silo(make_config(dataset="npz", data_options=options), path)
    with pytest.raises(DataError, match=r"data_options\.columns"):
        load_silo(make_config(dataset="npz", data_options={"classes": 2}), path)
