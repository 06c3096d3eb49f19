"""The quantiser against exact rational arithmetic, its bounds, its refusals, and the proof that sums never wrap."""

import time
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secure import fixedpoint as fp
from secure.errors import CapacityError, InputError
from secure.gate import MAX_SILOS
from secure.protocol import field
from secure.types import Block, MetricSpec, StatisticSpec, VectorSpec

CHUNK = 65536
floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
clips = st.one_of(st.sampled_from([1.0, 8.0, 0.1, 3.0, 2.0**-20, 1e6]), st.floats(2.0**-30, 2.0**30))


def exact(value: float, scale: float, clip: float) -> int:
    """The oracle: nearest-even rounding of exact rationals, then the largest representable whole step."""
    steps = round(Fraction(value) * Fraction(scale))
    limit = int(fp._limit(scale, clip))
    return max(-limit, min(limit, steps))


def quantise(values, scale, clip):
    chunk = np.asarray(values, np.float32)
    out = np.empty(chunk.shape, np.int32)
    clipped = fp.quantise_into(chunk, scale, clip, out)
    return out, clipped


class TestScale:
    @pytest.mark.parametrize(
        ("clip", "bits"),
        [(8.0, 26), (1.0, 29), (0.5, 30), (2.0, 28), (2.0**29, 0), (2.0**40, -11), (3.0, 27), (7.99, 26), (8.01, 25)],
    )
    def test_table(self, clip, bits):
        assert fp.scale_bits(clip) == bits
        assert fp.scale_of(clip) == 2.0**bits

    @given(clips)
    def test_scale_uses_the_29_bits_and_no_more(self, clip):
        assert 2**28 < Fraction(clip) * Fraction(fp.scale_of(clip)) <= 2**29

    @pytest.mark.parametrize("clip", [0.0, -1.0, float("nan"), float("inf"), 2.0**61, 2.0**-62])
    def test_refused(self, clip):
        with pytest.raises(CapacityError):
            fp.scale_bits(clip)


class TestQuantise:
    @given(st.lists(floats32, max_size=40), clips)
    def test_equals_exact_rounding(self, values, clip):
        scale = fp.scale_of(clip)
        out, clipped = quantise(values, scale, clip)
        assert out.tolist() == [exact(value, scale, clip) for value in values]
        limit = int(fp._limit(scale, clip))
        assert clipped == sum(abs(Fraction(value) * Fraction(scale)) > limit for value in values)

    def test_ties_go_to_even(self):
        out, _ = quantise([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], 1.0, 2.0**29)
        assert out.tolist() == [0, 2, 2, 0, -2, -2]

    @given(clips)
    def test_exact_at_the_bounds(self, clip):
        scale, limit = fp.scale_of(clip), fp._limit(fp.scale_of(clip), clip)
        edge = np.float32(limit / np.float32(scale))
        out, clipped = quantise([edge, -edge, np.nextafter(edge, np.float32(np.inf))], scale, clip)
        assert out.tolist() == [int(limit), -int(limit), int(limit)]
        assert clipped in (0, 1)  # the neighbour may still round to the bound
        assert int(limit) <= Fraction(clip) * Fraction(scale)

    def test_power_of_two_clip_is_kept_exactly(self):
        out, clipped = quantise([8.0, -8.0, 8.000001, -9.0], 2.0**26, 8.0)
        assert out.tolist() == [2**29, -(2**29), 2**29, -(2**29)]
        assert clipped == 2

    def test_huge_values_clip_without_warning(self):
        with np.errstate(all="raise"):
            out, clipped = quantise([3e38, -3e38, 0.0], 2.0**26, 8.0)
        assert out.tolist() == [2**29, -(2**29), 0]
        assert clipped == 2

    def test_zero_share_writes_zeros(self):
        out, clipped = quantise([1.0, -1.0, 0.0], 2.0**26, fp.effective_clip(8.0, 0.0))
        assert out.tolist() == [0, 0, 0]
        assert clipped == 2

    def test_denormals_and_signed_zero(self):
        out, clipped = quantise([1e-45, -1e-45, -0.0], 2.0**26, 8.0)
        assert (out.tolist(), clipped) == ([0, 0, 0], 0)

    def test_writes_unsigned_buffers_as_twos_complement(self):
        out = np.empty(2, np.uint32)
        fp.quantise_into(np.array([-1, 1], np.float32), 1.0, 10.0, out)
        assert out.tolist() == [2**32 - 1, 1]

    def test_empty(self):
        assert quantise([], 1.0, 1.0)[1] == 0

    @pytest.mark.parametrize(
        ("bad", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")], ids=["nan", "inf", "-inf"]
    )
    @pytest.mark.parametrize("place", [0, 17, 999])
    def test_non_finite_is_named_and_leaves_nothing(self, bad, word, place):
        chunk, out = np.full(1000, 0.123, np.float32), np.full(1000, 7, np.int32)
        chunk[place] = bad
        with pytest.raises(InputError) as caught:
            fp.quantise_into(chunk, 2.0**26, 8.0, out, "vae.0/encoder.weight")
        assert str(caught.value) == f"vae.0/encoder.weight holds {word}"  # no value, no index, no count
        assert not out.any()

    def test_wrong_arrays(self):
        good, out = np.zeros(4, np.float32), np.zeros(4, np.int32)
        for chunk, buffer in (
            (good.astype(np.float64), out),
            (good, np.zeros(4, np.int64)),
            (good, np.zeros(4, np.float32)),
            (good, np.zeros(5, np.int32)),
            (good.reshape(2, 2), out.reshape(2, 2)),
        ):
            with pytest.raises(InputError):
                fp.quantise_into(chunk, 1.0, 1.0, buffer)

    def test_chunking_does_not_matter(self):
        values = np.random.default_rng(3).normal(0, 5, 5000).astype(np.float32)
        whole, clipped = quantise(values, 2.0**26, 8.0)
        parts = [quantise(values[i : i + 777], 2.0**26, 8.0) for i in range(0, 5000, 777)]
        assert (np.concatenate([p[0] for p in parts]) == whole).all()
        assert sum(p[1] for p in parts) == clipped

    def test_no_array_sized_temporaries(self):
        values = np.random.default_rng(3).normal(0, 1, 16 * CHUNK).astype(np.float32)
        out = np.empty(values.shape, np.int32)
        tracemalloc.start()
        try:
            for start in range(0, values.size, CHUNK):
                fp.quantise_into(values[start : start + CHUNK], 2.0**26, 8.0, out[start : start + CHUNK])
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 64 * 1024  # the vector has 4 MiB

    @pytest.mark.slow
    def test_speed_in_copies(self):
        """Quantising costs a few passes over memory, not dozens (measured: 3 to 4 copies, of cached chunks)."""
        values = np.random.default_rng(3).normal(0, 1, 64 * CHUNK).astype(np.float32)
        out = np.empty(values.shape, np.int32)

        def quantise_all():
            for start in range(0, values.size, CHUNK):
                fp.quantise_into(values[start : start + CHUNK], 2.0**26, 8.0, out[start : start + CHUNK])

        def median(work):
            times = []
            for _ in range(15):
                begin = time.process_time()
                work()
                times.append(time.process_time() - begin)
            return sorted(times)[7]

        quantise_all()
        assert median(quantise_all) < 8 * median(lambda: np.copyto(out, values.view(np.int32)))


class TestDequantise:
    @given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=30), clips)
    def test_nearest_float(self, steps, clip):
        chunk, out = np.array(steps, np.int32), np.empty(len(steps), np.float32)
        fp.dequantise_into(chunk, fp.scale_of(clip), out)
        expected = [np.float32(s) / np.float32(fp.scale_of(clip)) for s in steps]
        assert out.tolist() == [float(e) for e in expected]

    @given(st.lists(st.floats(-8, 8, width=32), max_size=30))
    def test_round_trip_is_within_half_a_step(self, values):
        steps, _ = quantise(values, 2.0**26, 8.0)
        out = np.empty(len(values), np.float32)
        fp.dequantise_into(steps, 2.0**26, out)
        assert (np.abs(out - np.array(values, np.float32)) <= 2.0**-27).all()

    def test_wrong_arrays(self):
        for chunk, out in (
            (np.zeros(2, np.uint32), np.zeros(2, np.float32)),
            (np.zeros(2, np.int32), np.zeros(2, np.float64)),
            (np.zeros(2, np.int32), np.zeros(3, np.float32)),
        ):
            with pytest.raises(InputError):
                fp.dequantise_into(chunk, 1.0, out)


def spec(*blocks, components=1, metrics=(), statistics=()):
    return VectorSpec(components, tuple(blocks), tuple(metrics), tuple(statistics))


class TestNoWrap:
    @settings(max_examples=60)
    @given(st.integers(3, MAX_SILOS), clips, st.data())
    def test_weighted_sums_never_leave_the_bound(self, silos, clip, data):
        """Shares that add up to at most 1, every coordinate at its effective clip, all of one sign: the worst case."""
        raw = [data.draw(st.integers(1, 1000)) for _ in range(silos)]
        shares = [value / sum(raw) for value in raw]
        scale, total = fp.scale_of(clip), 0
        for share in shares:
            out, _ = quantise([3e38], scale, fp.effective_clip(clip, share))
            total += int(out[0])
        assert total <= fp.sum_bound(clip, silos) < 2**31

    @given(st.integers(3, MAX_SILOS), st.data())
    def test_unclipped_sums_keep_rounding_within_half_a_step_a_silo(self, silos, data):
        seed = data.draw(st.integers(0, 2**32 - 1))
        rng = np.random.default_rng(seed)
        shares = rng.dirichlet(np.ones(silos))
        deltas = rng.uniform(-8, 8, silos)
        weighted = (shares * deltas).astype(np.float32)
        total = sum(int(quantise([w], 2.0**26, 8.0)[0][0]) for w in weighted)
        ideal = sum(Fraction(float(w)) for w in weighted) * 2**26
        assert abs(total - ideal) <= Fraction(silos, 2)

    def test_effective_clip_refuses_other_shares(self):
        for share in (-0.1, 1.1, float("nan")):
            with pytest.raises(InputError):
                fp.effective_clip(8.0, share)

    def test_holding_silos_to_the_full_clip_would_wrap(self):
        """Why the effective clip exists: four silos at the full clip already reach 2^31."""
        assert 4 * fp.sum_bound(8.0, 0) >= 2**31


class TestSegments:
    def test_merges_neighbours_that_quantise_alike(self):
        layout = spec(
            Block("a", 3, 8.0, 0), Block("b", 2, 8.0, 0), Block("c", 0, 8.0, 0), Block("d", 4, 1.0, 0),
            Block("e", 5, 1.0, 1), Block("f", 5, 1.0, 1), components=2,
        )  # fmt: skip
        parts = fp.segments(layout, (0.5, 0.25))
        assert [(p.start, p.stop, p.clip, p.name) for p in parts] == [
            (0, 5, 4.0, "a"),
            (5, 9, 0.5, "d"),
            (9, 19, 0.25, "e"),
        ]
        assert [p.scale for p in parts] == [2.0**26, 2.0**29, 2.0**29]

    def test_closed_components_keep_their_own_segment(self):
        parts = fp.segments(spec(Block("a", 3, 8.0, 0), Block("b", 2, 8.0, 1), components=2), (0.0, 0.0))
        assert [(p.start, p.stop, p.clip) for p in parts] == [(0, 5, 0.0)]

    def test_equal_effective_clips_of_unequal_bounds_stay_apart(self):
        layout = spec(Block("a", 1, 5.0, 0), Block("b", 1, 8.0, 1), components=2)
        parts = fp.segments(layout, (0.8, 0.5))
        assert [(p.scale, p.clip) for p in parts] == [(2.0**26, 4.0)] * 2
        assert parts[0].bound != parts[1].bound

    @given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1.0, 8.0]), st.integers(0, 2)), max_size=12))
    def test_cover_the_vector_without_gaps(self, blocks):
        layout = spec(*(Block(f"b{i}", n, c, j) for i, (n, c, j) in enumerate(blocks)), components=3)
        parts = fp.segments(layout, (0.3, 0.0, 1.0))
        assert [p.start for p in parts] == [0, *(p.stop for p in parts[:-1])][: len(parts)]
        assert (parts[-1].stop if parts else 0) == layout.length

    def test_wrong_number_of_shares(self):
        with pytest.raises(InputError):
            fp.segments(spec(Block("a", 3, 8.0, 0)), (0.5, 0.5))


class TestScalars:
    METRIC = MetricSpec("vae_loss", 1e6, 2.0**-16)
    STATISTIC = StatisticSpec("mean_loss.0", 1e4, 2.0**-20)

    @given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=128))
    def test_metric_sums(self, values):
        total = sum(fp.encode_metric(self.METRIC, value)[0] for value in values) % 2**64
        assert abs(fp.decode_metric(self.METRIC, total) - sum(values)) <= len(values) * 2.0**-17 + 1e-6
        assert fp.decode_metric(self.METRIC, np.array([total], np.uint64)[0]) == fp.decode_metric(self.METRIC, total)

    def test_metric_bounds(self):
        limit = round(1e6 * 2**16)
        assert fp.encode_metric(self.METRIC, 1e6) == (limit, False)
        assert fp.encode_metric(self.METRIC, -1e6) == (-limit, False)
        assert fp.encode_metric(self.METRIC, 1.1e6) == (limit, True)
        assert fp.encode_metric(self.METRIC, -1e300) == (-limit, True)

    @given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=128))
    def test_statistic_sums(self, values):
        encoded = [fp.encode_statistic(self.STATISTIC, value) for value in values]
        assert min(encoded) >= 0
        assert sum(encoded).bit_length() <= fp.statistic_width(self.STATISTIC, len(values))
        total = fp.decode_statistic(self.STATISTIC, sum(encoded), len(values))
        assert abs(total - sum(values)) <= len(values) * 2.0**-21 + 1e-6

    def test_statistic_width_holds_the_largest_sum(self):
        top = fp.encode_statistic(self.STATISTIC, 1e9)
        assert top == fp.encode_statistic(self.STATISTIC, 1e4)
        assert 128 * top < 1 << fp.statistic_width(self.STATISTIC, 128)
        assert fp.encode_statistic(self.STATISTIC, -1e9) == 0

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_non_finite(self, value):
        with pytest.raises(InputError, match=r"^metric vae_loss is NaN or infinite$"):
            fp.encode_metric(self.METRIC, value)
        with pytest.raises(InputError, match=r"^statistic mean_loss\.0 is NaN or infinite$"):
            fp.encode_statistic(self.STATISTIC, value)

    @pytest.mark.parametrize(
        ("count", "order"), [(-1, 0), (0, 0), (1, 1), (2, 10), (10, 10), (11, 100), (100, 100), (101, 1000)]
    )
    def test_magnitude(self, count, order):
        assert fp.magnitude(count) == order

    @given(st.integers(1, 10**12))
    def test_magnitude_bounds(self, count):
        assert count <= fp.magnitude(count) < 10 * count or fp.magnitude(count) == count == 1


class TestCapacity:
    @pytest.mark.parametrize("silos", range(3, MAX_SILOS + 1))
    def test_every_cohort_size_is_proved(self, silos):
        layout = spec(
            *(Block(f"c{clip}", 10, clip, 0) for clip in (2.0**-40, 0.1, 1.0, 3.3, 8.0, 1e9)),
            metrics=[MetricSpec("loss", 1e7, 2.0**-16, 0)],
            statistics=[StatisticSpec("loss", 1e7, 2.0**-16)],
        )
        fp.check_capacity(layout, silos)

    @pytest.mark.parametrize("silos", [0, 1, 2, 129])
    def test_cohort_sizes_out_of_range(self, silos):
        with pytest.raises(CapacityError, match="silos"):
            fp.check_capacity(spec(Block("a", 1, 8.0, 0)), silos)

    @pytest.mark.parametrize(
        ("layout", "words"),
        [
            (spec(Block("w", 1, 0.0, 0)), "block w"),
            (spec(Block("w", 1, float("nan"), 0)), "block w"),
            (spec(Block("w", 1, 1e30, 0)), "rescale"),
            (spec(Block("w", -1, 1.0, 0)), "block w"),
            (spec(Block("w", 1, 1.0, 1)), "block w"),
            (spec(Block("w", 2**32 + 1, 1.0, 0)), "split"),
            (spec(components=0), "component"),
            (spec(metrics=[MetricSpec("m", 2.0**40, 2.0**-40)]), "metric m.*10 silos"),
            (spec(metrics=[MetricSpec("m", 1.0, 0.0)]), "metric m"),
            (spec(metrics=[MetricSpec("m", 1.0, 2.0)]), "metric m"),
            (spec(metrics=[MetricSpec("m", float("inf"), 1.0)]), "metric m"),
            (spec(metrics=[MetricSpec("m", 1.0, 0.5, 3)]), "metric m"),
            (spec(metrics=[MetricSpec("m", 1.0, 0.5), MetricSpec("m", 1.0, 0.5)]), "distinct"),
            (spec(statistics=[StatisticSpec("s", 1e300, 1e-5)]), "statistic s"),
            (spec(statistics=[StatisticSpec("s", 1e20, 1e-20)]), "statistic s.*resolution"),
            (spec(statistics=[StatisticSpec("s", 1.0, -1.0)]), "statistic s"),
        ],
    )
    def test_refusals_name_the_culprit(self, layout, words):
        with pytest.raises(CapacityError, match=words):
            fp.check_capacity(layout, 10)

    def test_statistic_limit_is_sharp(self):
        """Two-sided sums of K silos stay below the field of the totals, 2^127 − 1; the next power of two is refused."""
        fp.check_capacity(spec(statistics=[StatisticSpec("s", 2.0**121, 1.0)]), 15)
        with pytest.raises(CapacityError, match="statistic s"):
            fp.check_capacity(spec(statistics=[StatisticSpec("s", 2.0**121, 1.0)]), 16)
        assert 2**fp.STATISTIC_BITS < field.PRIME

    def test_metric_limit_is_sharp(self):
        """The largest bound that fits 2^63 for K silos passes; twice that is refused."""
        fp.check_capacity(spec(metrics=[MetricSpec("m", float(2**59), 1.0)]), 15)
        with pytest.raises(CapacityError):
            fp.check_capacity(spec(metrics=[MetricSpec("m", float(2**59), 1.0)]), 16)
