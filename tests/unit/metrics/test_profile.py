"""Profiles: the same but for rounding however the rows are grouped, and figures within their bounds of numpy's."""

from __future__ import annotations

import datetime as dt
import json
import math
import zlib
from collections import Counter
from copy import deepcopy
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar.inference.metrics.columns import LONGEST
from nightjar.inference.metrics.figures import ProfileFigures
from nightjar.inference.metrics.numbers import (
    COARSEST,
    FINEST,
    MOST_BINS,
    QUANTILES,
    Bins,
    Moments,
    NumberState,
    keys_of,
    lowest,
    middles,
)
from nightjar.inference.metrics.profile import ENOUGH, MOST, ColumnProfile, Profile, counted_values, drawn, share_of

FLOATS = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, 1e-320, 1e300, -1e300])
ROWS = st.lists(
    st.tuples(
        FLOATS | st.none(),
        st.integers(-(2**63), 2**63 - 1) | st.none(),
        st.text(max_size=5) | st.none(),
        st.booleans() | st.none(),
    ),
    max_size=40,
)
TYPES = {"float": pa.float64(), "integer": pa.int64(), "text": pa.string(), "bool": pa.bool_()}


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(TYPES)
    return pa.table({name: pa.array(values, kind) for (name, kind), values in zip(TYPES.items(), columns, strict=True)})


def profiled(found: pa.Table) -> Profile:
    profile = Profile.empty(found.column_names)
    profile.update(found)
    return profile


def of(values: Any, kind: pa.DataType | None = None) -> ProfileFigures:
    return profiled(pa.table({"x": pa.array(values, kind)})).results()["x"]


@settings(max_examples=80)
@given(ROWS, st.randoms(use_true_random=False))
def test_any_grouping_and_order_of_the_same_rows_gives_the_same_but_for_rounding(
    rows: list[tuple[Any, ...]], random: Any
) -> None:
    whole = profiled(table(rows)).to_bytes()
    shuffled = random.sample(rows, len(rows))
    cuts = sorted(random.randrange(len(rows) + 1) for _ in range(3))
    parts = [shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    random.shuffle(parts)
    merged = Profile.empty(TYPES)
    for part in parts:
        if random.random() < 0.5:
            merged.update(table(part))
        else:  # as the audit does
            merged.merge(Profile.from_bytes(profiled(table(part)).to_bytes()))
    assert same_but_for_rounding(merged, Profile.from_bytes(whole))
    assert Profile.from_bytes(whole).to_bytes() == whole


def same_but_for_rounding(one: Profile, other: Profile) -> bool:
    one, other = deepcopy(one), deepcopy(other)
    for name, column in one.columns.items():
        mine, theirs = column.numbers.moments, other.columns[name].numbers.moments
        assert mine.count == theirs.count
        assert mine.mean == pytest.approx(theirs.mean, rel=1e-9, abs=1e-9 * spread(column.numbers))
        # Beyond these bounds squares have no digits left.
        if mine.count and 1e-150 < spread(column.numbers) < 1e150:
            one_std, other_std = (math.sqrt(each.deviations / each.count) for each in (mine, theirs))
            assert one_std == pytest.approx(other_std, rel=1e-9, abs=1e-12 * spread(column.numbers))
        column.numbers.moments = other.columns[name].numbers.moments = Moments()
    return one.to_bytes() == other.to_bytes()


def spread(numbers: NumberState) -> float:
    return max(abs(numbers.min or 0), abs(numbers.max or 0))


def test_blocks_of_many_rows_give_the_same_as_few() -> None:
    """More rows than are added at once, and categories on both sides of the cap."""
    random = np.random.default_rng(0)
    rows = 300_000
    found = pa.table(
        {
            "float": random.lognormal(0, 20, rows) * random.choice([-1, 1], rows),
            "few": random.integers(0, 200, rows),
            "many": random.integers(0, 400, rows),
            "text": pa.array(random.choice(["a", "bb", "ccc"], rows)),
        }
    )
    pieces = Profile.empty(found.column_names)
    for first in range(0, rows, 70_001):
        pieces.merge(profiled(found.slice(first, 70_001)))
    assert same_but_for_rounding(pieces, profiled(found))
    assert [pieces.results()[name].distinct for name in ("few", "many", "text")] == [200, None, 3]


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=60))
def test_mean_and_deviation_are_those_of_the_values(values: list[float]) -> None:
    found = of(values, pa.float64()).numbers
    assert found is not None
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    largest = max(map(abs, values))
    assert found.mean == pytest.approx(float(mean), rel=1e-12, abs=1e-14 * largest)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in exact) / len(exact))
    assert found.std == pytest.approx(deviation, rel=1e-9, abs=1e-14 * largest)
    assert (found.min, found.max) == (min(values), max(values))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False), min_size=1, max_size=200))
def test_a_quantile_is_within_a_128th_of_the_value(values: list[float]) -> None:
    state = NumberState()
    state.update(np.array(values))
    for share in QUANTILES:
        exact = float(np.quantile(values, share, method="inverted_cdf"))
        assert abs(state.quantile(share) - exact) <= abs(exact) / 128


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=50),
    st.integers(COARSEST, FINEST),
)
def test_bins_are_in_the_order_of_the_values_and_hold_them(values: list[float], bits: int) -> None:
    ordered = np.array(sorted(values))
    keys = keys_of(ordered, bits)
    assert (keys[1:] >= keys[:-1]).all()
    assert (np.sign(keys) == np.sign(ordered)).all()
    low, high = lowest(np.abs(keys), bits), lowest(np.abs(keys) + 1, bits)
    assert ((low <= np.abs(ordered)) & ((np.abs(ordered) < high) | (keys == 0))).all()
    assert (np.abs(np.abs(middles(keys, bits)) - low) <= high - low).all()


@given(
    st.lists(
        st.tuples(st.floats(-1e12, 1e12), st.floats(0, 10), st.integers(1, 400) | st.just(20_000)),
        min_size=1,
        max_size=8,
    ),
    st.data(),
)
def test_bins_are_as_fine_as_the_values_allow_in_whatever_order_they_are_added(
    clusters: list[tuple[float, float, int]], data: st.DataObject
) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = np.concatenate([random.normal(*cluster) for cluster in clusters])
    whole, pieces = Bins.holding(values), Bins()
    for piece in np.array_split(random.permutation(values), data.draw(st.integers(1, 9))):
        pieces.merge(Bins.holding(piece))
    assert pieces.values() == whole.values() == Bins.holding(np.sort(values)).values()
    assert whole.counts.sum() == len(values)
    assert len(whole.keys) <= MOST_BINS or whole.bits == COARSEST
    if whole.bits < FINEST:
        assert len(np.unique(keys_of(values, whole.bits + 1))) > MOST_BINS


NARROW: dict[str, Any] = {
    "normal": lambda random, rows: random.normal(0, 1, rows).astype(np.float32),
    "mostly zeros": lambda random, rows: (random.normal(0, 1, rows) * (random.random(rows) < 0.1)).astype(np.float32),
    "negative zeros": lambda random, rows: -np.zeros(rows, np.float32),
    "spread": lambda random, rows: np.exp(random.normal(0, 15, rows)).astype(np.float32),
    "any bits": lambda random, rows: random.integers(0, 2**32, rows, np.uint32).view(np.float32),
    "too small to be normal": lambda random, rows: (random.normal(0, 1e-40, rows)).astype(np.float32),
    "the largest": lambda random, rows: np.full(rows, np.finfo(np.float32).max),
    "all bits": lambda random, rows: np.full(rows, np.nextafter(np.float32(1), np.float32(0))),
    "the smallest that are added with others": lambda random, rows: np.resize(
        np.array([1 - 2**-24, 2**-14 * (2 - 2**-23), 2**-14 * (1 - 2**-24), -(2**-14)], np.float32), rows
    ),
    "bytes": lambda random, rows: random.integers(-128, 128, rows).astype(np.int8),
    "integers with exact squares": lambda random, rows: random.integers(-(2**26), 2**26, rows),
    "integers without": lambda random, rows: random.integers(-(2**28), 2**28, rows),
    "large integers": lambda random, rows: random.integers(0, 2**64, rows, np.uint64),
}


@pytest.mark.parametrize("shape", NARROW)
def test_numbers_of_few_bits_give_the_state_that_they_give_as_float64(shape: str) -> None:
    random = np.random.default_rng(5)
    for rows in (1, 1000, 131_079):
        values = NARROW[shape](random, rows)
        narrow, wide = NumberState(), NumberState()
        narrow.update(values)
        with np.errstate(invalid="ignore"):
            wide.update(values.astype(np.float64))
        assert narrow.values() == wide.values()


@given(st.lists(st.integers(-300, 300) | st.integers(2**63, 2**63 + 9), min_size=1, max_size=300))
def test_integers_that_lie_close_together_are_counted_each(values: list[int]) -> None:
    kind = pa.int64() if max(values) < 2**63 else pa.uint64()
    values = [each for each in values if kind == pa.int64() or each >= 0]
    column = pa.chunked_array([pa.array(values, kind)])
    found = counted_values(column)
    assert (found is None) == (len(set(column.slice(0, 2048).to_pylist())) > MOST)
    if found is not None:
        assert dict(zip(found[0].to_pylist(), found[1].tolist(), strict=True)) == Counter(values)


def test_real_shapes_of_values_are_within_the_bounds_of_numpys_figures() -> None:
    random = np.random.default_rng(1)
    for values in (random.normal(50, 3, 200_000), random.exponential(1e-6, 5000), random.integers(0, 5, 1000) * 1.0):
        found = of(values).numbers
        assert found is not None
        assert found.mean == pytest.approx(values.mean(), rel=1e-12)
        assert found.std == pytest.approx(values.std(), rel=1e-6)
        exact = np.quantile(values, QUANTILES, method="inverted_cdf")
        assert list(found.quantiles.values()) == pytest.approx(exact, rel=1 / 128)
    assert list(found.quantiles) == ["p1", "p5", "p25", "p50", "p75", "p95", "p99"]


def test_what_is_not_finite_is_counted_apart() -> None:
    found = of([1.0, math.nan, math.inf, -math.inf, -math.inf, None], pa.float32())
    assert (found.rows, found.nulls, found.nan, found.plus_inf, found.minus_inf) == (6, 1, 1, 1, 2)
    assert found.numbers is not None
    assert (found.numbers.count, found.numbers.mean) == (1, 1.0)


def test_squares_that_are_no_float_leave_no_deviation() -> None:
    found = of([1e200, 1.0]).numbers
    assert found is not None
    assert (found.mean, found.std) == (5e199, None)
    equal = of([1e200, 1e200]).numbers
    assert equal is not None
    assert (equal.mean, equal.std) == (1e200, 0)


@pytest.mark.parametrize(
    "values", [[1e200, 3e200], [1.7e308] * 3 + [-1.7e308], [1.797e308] * 7, [-1e308, 1e308, 1e308]]
)
def test_the_mean_of_the_largest_numbers_is_known_in_one_shard_and_in_several(values: list[float]) -> None:
    exact = float(sum(map(Fraction, values)) / len(values))
    whole, merged = NumberState(), NumberState()
    whole.update(np.array(values))
    for value in values:
        merged.update(np.array([value]))
    for state in (whole, merged):
        assert state.moments.mean == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["UA", "AA", "UA", None], pa.string()),
        (["UA", "AA", "UA", None], pa.large_string()),
        (["UA", "AA", "UA", None], pa.dictionary(pa.int8(), pa.string())),
        ([1, 2, 1, None], pa.uint8()),
        ([True, False, True, None], pa.bool_()),
    ],
)
def test_values_that_are_few_are_counted_each(values: list[Any], kind: pa.DataType) -> None:
    found = of(values, kind)
    expected = Counter(str(value).lower() if isinstance(value, bool) else str(value) for value in values if value)
    expected |= {"false": 1} if False in values[:3] and kind == pa.bool_() else {}
    assert {each.value: each.rows for each in found.frequent} == dict(expected)
    assert (found.distinct, found.nulls) == (2, 1)


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (pa.float16(), [1.5, 2.5], "number"),
        (pa.decimal32(5, 1), [Decimal("1.5"), Decimal("2.5")], "number"),
        (pa.decimal64(9, 1), [Decimal("1.5"), Decimal("2.5")], "number"),
        (pa.decimal128(30, 1), [Decimal("1.5"), Decimal("2.5")], "number"),
        (pa.decimal256(60, 1), [Decimal("1.5"), Decimal("2.5")], "number"),
        (pa.dictionary(pa.int8(), pa.float64()), [1.5, 2.5], "number"),
        (pa.string_view(), ["a", "bbb"], "text"),
        (pa.large_string(), ["a", "bbb"], "text"),
        (pa.dictionary(pa.int8(), pa.large_string()), ["a", "bbb"], "text"),
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [2, 3000])
def test_each_type_that_a_file_may_have_is_described(
    kind: pa.DataType, values: list[Any], said: str, rows: int
) -> None:
    """With few values, and with so many rows that Arrow looks at them in another way."""
    whole = [*values] * (rows // 2) + [None]
    array = (
        pa.array(whole, kind.value_type).dictionary_encode() if pa.types.is_dictionary(kind) else pa.array(whole, kind)
    )
    found = of(array)
    assert (found.kind, found.rows, found.nulls) == (said, rows + 1, 1)
    assert found.numbers is not None
    assert (found.numbers.count, found.numbers.mean) == (rows, 2.0)


def test_many_texts_in_views_are_described() -> None:
    found = of([str(number) for number in range(3000)], pa.string_view())
    assert found.kind == "text"
    assert found.distinct is None


def test_values_that_are_many_or_long_are_not_counted_and_texts_have_lengths() -> None:
    assert of([str(number) for number in range(MOST)]).distinct == MOST
    assert of([str(number) for number in range(MOST + 1)]).distinct is None
    assert of(["a" * LONGEST]).distinct == 1
    found = of(["a" * (LONGEST + 1), "b"])
    assert (found.distinct, found.frequent) == (None, ())
    assert found.numbers is not None
    assert (found.numbers.min, found.numbers.max) == (1, LONGEST + 1)


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        ([dt.date(2026, 1, 1), None], pa.date32(), "other"),
        ([[1.0], None], pa.list_(pa.float32()), "other"),
        ([None, None], pa.null(), ""),
    ],
)
def test_of_other_types_rows_and_nulls_are_counted(values: list[Any], kind: pa.DataType, said: str) -> None:
    found = of(values, kind)
    assert (found.kind, found.rows, found.nulls, found.numbers) == (said, 2, values.count(None), None)
    assert found.distinct == (None if said == "other" else 0)


@pytest.mark.parametrize("more", [["a", "b"] * 10, [f"text {number % 700}" for number in range(2000)], ["x" * 300]])
def test_the_spread_of_texts_is_the_same_however_they_come(more: list[str]) -> None:
    """In parts with few values that are counted each, with many, or with one too long; and read again."""
    parts = [["a", "c"] * 5, more, [f"text {number}" for number in range(300)]]
    whole, merged = ColumnProfile(), ColumnProfile()
    whole.update(pa.chunked_array([[text for part in parts for text in part]]))
    for part in parts:
        found = ColumnProfile()
        found.update(pa.chunked_array([part]))
        merged.merge(ColumnProfile.of_values(json.loads(json.dumps(found.values()))))
    assert merged.spread.tolist() == whole.spread.tolist()
    assert whole.spread.sum() == whole.rows


def test_another_version_is_refused() -> None:
    packed = zlib.compress(json.dumps({"v": 2, "columns": {}}).encode())
    with pytest.raises(ValueError, match="not a profile: version 2, not 7"):
        Profile.from_bytes(packed)


def test_two_hundred_columns_are_bounded() -> None:
    """Of any values: a part's profile lies beside it, and a night's is read whole."""
    random = np.random.default_rng(2)
    wild = random.integers(0, 2**63, (200, 5000)).view(np.float64)
    found = pa.table({f"c{index}": column for index, column in enumerate(wild)})
    assert len(profiled(found).to_bytes()) < 200 * 15_000
    tame = pa.table({f"c{index}": random.normal(index, 1, 5000) for index in range(200)})
    assert len(profiled(tame).to_bytes()) < 200 * 1_500


@pytest.mark.parametrize("data", [b"", b"x", Profile({}).to_bytes()[:-3]])
def test_what_is_no_profile_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a profile"):
        Profile.from_bytes(data)


def test_a_row_is_drawn_or_not_wherever_it_is_cut() -> None:
    """So a profile of some rows does not depend on shards, nor on what an attempt scored before it died."""
    rows = np.arange(200_000, dtype=np.int64)
    whole = drawn("s3://lake/a.parquet", rows, 0.1)
    assert whole is not None
    assert len(whole) == pytest.approx(20_000, abs=600)  # more than four standard deviations
    pieces = [rows[at] for at in (slice(150_000, None), slice(0, 70_001), slice(70_001, 150_000))]
    found = [piece[drawn("s3://lake/a.parquet", piece, 0.1)] for piece in pieces]
    assert sorted(np.concatenate(found)) == whole.tolist()
    assert drawn("s3://lake/a.parquet", rows, 1) is None


def test_files_and_places_are_drawn_independently() -> None:
    """The same place of two files, and neighbours in one file, are drawn together as often as by chance."""
    rows = np.arange(200_000, dtype=np.int64)
    masks = []
    for name in ("a", "b"):
        masks.append(np.zeros(len(rows), bool))
        masks[-1][drawn(name, rows, 0.2)] = True
    one, other = masks
    assert (one & other).mean() == pytest.approx(0.04, abs=0.002)
    assert (one[1:] & one[:-1]).mean() == pytest.approx(0.04, abs=0.002)
    assert (one[7:] & one[:-7]).mean() == pytest.approx(0.04, abs=0.002)


@pytest.mark.parametrize(
    ("rows", "share"),
    [(None, 1), (0, 1), (ENOUGH, 1), (ENOUGH + ENOUGH // 100, 0.99), (16 * ENOUGH, 0.0625), (10**13, 2.5e-8)],
)
def test_of_many_rows_as_many_are_described_as_are_enough(rows: int | None, share: float) -> None:
    assert share_of(rows) == share
    assert (drawn("a file", np.arange(3), share) is None) == (share == 1)
