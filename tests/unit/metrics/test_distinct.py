"""Distinct values: registers that depend on the set of values alone, and a count within its stated error."""

from __future__ import annotations

import json
import math
import zlib
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar.flows.pages.wording import distinct_text
from nightjar.inference.metrics.categories import ERROR, LONGEST, MOST, DistinctState
from nightjar.inference.metrics.encoding import pack, unpack
from nightjar.inference.metrics.figures import Distinct
from nightjar.inference.metrics.keyhash import comparable, hashes_of
from nightjar.inference.metrics.profile import ColumnProfile, Profile

VALUES: dict[str, Any] = {
    "floats": st.floats(allow_nan=True) | st.sampled_from([0.0, -0.0]),
    "integers": st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    "texts": st.text(max_size=12),
}
KINDS = {"floats": pa.float64(), "integers": pa.int64(), "texts": pa.string()}


def column(values: Any, kind: pa.DataType | None = None) -> pa.ChunkedArray:
    array = pa.array(values, kind)
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def profile(*columns: pa.ChunkedArray) -> ColumnProfile:
    found = ColumnProfile()
    for each in columns:
        found.update(each)
    return found


def distinct(*columns: pa.ChunkedArray) -> DistinctState:
    found = DistinctState()
    for each in columns:
        found.update(hashes_of(comparable(each)))
    return found


def kept(found: ColumnProfile) -> list[int]:
    assert found.categories.cut
    return list(map(int, found.distinct.registers))


MANY = list(range(MOST + 44))
TEXTS = [f"text {number % 700}" for number in range(2000)]
"""More than are counted each, in either."""


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(st.data())
def test_order_grouping_and_repetition_do_not_matter(kind: str, data: st.DataObject) -> None:
    """On both sides of the cap, and across it: the bytes are those of the set of values."""
    random = data.draw(st.randoms(use_true_random=False))
    more = {"floats": MANY, "integers": MANY, "texts": list(map(str, MANY))}[kind]
    values = data.draw(st.lists(VALUES[kind], max_size=20)) + more[: data.draw(st.sampled_from([0, 250, 300]))]
    whole = profile(column(values, KINDS[kind]))
    again = [*values, *random.sample(values, len(values) // 2)]
    random.shuffle(again)
    cuts = sorted(random.randrange(len(again) + 1) for _ in range(4))
    merged = ColumnProfile()
    for first, last in zip([0, *cuts], [*cuts, len(again)], strict=True):
        part = column(again[first:last], KINDS[kind])
        if random.random() < 0.5:
            merged.update(part)
        else:
            merged.merge(ColumnProfile.of_values(json.loads(json.dumps(profile(part).values()))))
    assert merged.values()[5] == whole.values()[5]


FORMS = {
    "integers": [
        pa.array(MANY, pa.int16()),
        pa.array(MANY, pa.int64()),
        pa.array(MANY, pa.uint64()),
        pa.array(MANY, pa.int32()).dictionary_encode(),
    ],
    "numbers with a point": [
        pa.array(MANY, pa.float32()),
        pa.array(MANY, pa.float64()),
        pa.array(MANY, pa.float16()),
        pa.array(map(Decimal, MANY), pa.decimal128(9, 2)),
    ],
    "fractions": [pa.array([each / 8 for each in MANY], kind) for kind in (pa.float16(), pa.float32(), pa.float64())],
    "large integers": [pa.array([2**60 + each for each in MANY], kind) for kind in (pa.int64(), pa.uint64())],
    "texts": [
        pa.array(map(str, MANY), pa.string()),
        pa.array(map(str, MANY), pa.large_string()),
        pa.array(map(str, MANY), pa.string_view()),
        pa.array(map(str, MANY)).dictionary_encode(),
        pa.array(["before", *map(str, MANY)]).slice(1),
    ],
    "zeros": [pa.array([*MANY[1:], zero], pa.float64()) for zero in (0.0, -0.0)],
    "nothing else": [pa.array([*MANY, *more], pa.float64()) for more in ([], [math.nan], [None], [math.nan, None])],
}
"""Forms of the same values."""


@pytest.mark.parametrize("values", FORMS)
def test_a_value_is_the_same_in_each_type(values: str) -> None:
    first, *others = (kept(profile(pa.chunked_array([form]))) for form in FORMS[values])
    assert all(other == first for other in others)


def test_integers_that_no_float_holds_are_values_of_their_own() -> None:
    """2^53 + 1 is no float64, and not the same as 2^53."""
    for kind, base in ((pa.int64(), 2**53), (pa.int64(), -(2**63)), (pa.int64(), 2**62), (pa.uint64(), 2**63)):
        found = profile(column([base + each for each in range(1000)], kind)).count_distinct()
        assert found is not None
        assert found.count == pytest.approx(1000, rel=4 * ERROR)
    assert distinct(column([2**64 - 1, 2**63 - 1, 2**63], pa.uint64())).count() == 3


@pytest.mark.parametrize("values", [[2**53 + 1, -1], [-1, 2**63 - 1], [3, 1, 2], [-(2**63), 2**63 - 1], []])
def test_integers_are_kept_exactly(values: list[int]) -> None:
    assert unpack(pack(np.array(values, np.int64))).tolist() == values


def test_values_that_were_counted_each_are_as_if_they_had_never_been() -> None:
    """Two parts below the cap that are above it together, of numbers and of texts; and one with a text too long."""
    large = [2**64 - each for each in range(1, 201)]
    for low, high, kind in (
        (range(-200, 0), range(200), pa.int64()),
        (range(200), large, pa.uint64()),
        (map(str, range(200)), map(str, range(100, 400)), pa.string()),
        (["é", "b"], ["x" * (LONGEST + 1)], pa.large_string()),
    ):
        one, other = list(low), list(high)
        parts = profile(column(one, kind), column(other, kind))
        assert kept(parts) == distinct(column([*one, *other], kind)).registers.tolist()


def test_registers_are_those_of_the_definition_however_many_values_came_before() -> None:
    values = np.random.default_rng(11).random(200_000)
    expected = [0] * 4096
    for hashed in hashes_of(comparable(column(values))).tolist():
        register, leading = hashed % 4096, f"{hashed // 4096:052b}"
        expected[register] = max(expected[register], len(leading) - len(leading.lstrip("0")) + 1)
    for state in (distinct(column(values)), distinct(column(values[:60_000]), column(values[60_000:]))):
        assert state.registers.tolist() == expected


def test_the_count_is_within_its_error_for_all_numbers_of_values() -> None:
    """Mean and spread of the error over independent sets, up to a million values."""
    random = np.random.default_rng(7)
    for count, sets in ((1, 20), (30, 20), (1000, 40), (4000, 40), (10_000, 40), (30_000, 30), (100_000, 12)):
        errors = []
        for _ in range(sets):
            state = distinct(column(random.integers(0, 2**63, count)))
            errors.append(state.count() / count - 1)
        assert abs(np.mean(errors)) < 4 * ERROR / math.sqrt(sets)
        assert np.std(errors) < 1.5 * ERROR
    assert DistinctState().count() == 0
    assert DistinctState(np.full(4096, 53, np.uint8)).count() == 2**64
    assert distinct(column(random.random(1_000_000))).count() == pytest.approx(1_000_000, rel=3 * ERROR)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(50_000),
        np.arange(50_000) * 1_000_003,
        np.arange(50_000) / 100,
        np.arange(50_000, dtype=np.float32) / np.float32(3),
        1_700_000_000_000_000 + np.arange(50_000) * 1000,
        np.arange(50_000) << 40,
        2.0 ** np.linspace(-900, 900, 50_000),
    ],
    ids=["count", "steps", "cents", "thirds", "times", "high bits", "all sizes"],
)
def test_values_with_a_pattern_are_counted_as_well_as_random_ones(values: np.ndarray) -> None:
    assert distinct(column(values)).count() == pytest.approx(len(np.unique(values)), rel=3 * ERROR)


def test_a_count_is_not_more_than_the_rows_that_have_a_value() -> None:
    for seed in range(20):
        values = np.random.default_rng(seed).random(3000)
        found = profile(column([*values, None, math.nan])).count_distinct()
        assert found is not None
        assert found.count <= 3000


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (5, "AA==", ""),
        (5, ["AA=="], ""),
        (5, [pack(np.zeros(4095, np.uint8))], ": not 4096 registers"),
        (6, pack(np.zeros(1, np.int64)), ": not 256 groups"),
        (6, [1], ""),
    ],
)
def test_what_are_no_registers_and_what_is_no_spread_is_refused(place: int, value: Any, said: str) -> None:
    values = profile(column(TEXTS)).values()
    values[place] = value
    packed = zlib.compress(json.dumps({"v": 4, "columns": {"x": values}}).encode())
    with pytest.raises(ValueError, match=rf"^not a profile{said}"):
        Profile.from_bytes(packed)


def test_a_profile_that_is_read_again_goes_on_as_it_was() -> None:
    """Of each value that was counted the registers and the spread are known when there are too many later."""
    few, many = column(["a", "b"] * 10), column(TEXTS)
    read = Profile.from_bytes(Profile({"few": profile(few), "many": profile(many)}).to_bytes())
    assert read.columns["many"].values() == profile(many).values()
    read.columns["few"].merge(profile(many))
    assert kept(read.columns["few"]) == kept(profile(few, many))
    spread, whole = read.columns["few"].by_hash(), profile(few, many).by_hash()
    assert spread.tolist() == whole.tolist()
    assert spread.sum() == 20 + len(TEXTS)


def test_another_version_is_refused() -> None:
    packed = zlib.compress(json.dumps({"v": 2, "columns": {}}).encode())
    with pytest.raises(ValueError, match="not a profile: version 2, not 4"):
        Profile.from_bytes(packed)


def test_registers_are_small() -> None:
    random = np.random.default_rng(3)
    for rows, most in ((0, 70), (300, 700), (10_000, 2600), (1_000_000, 2600)):
        assert len(json.dumps(distinct(column(random.random(rows))).values())) < most
    assert not profile(column(["a", "b"] * 100)).distinct.registers.any()


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, ""),
        (Distinct(1234), "1,234"),
        (Distinct(257, ERROR), "≈ 257 ± 1.6%"),
        (Distinct(1_234, ERROR), "≈ 1.23 k ± 1.6%"),
        (Distinct(999_600, ERROR), "≈ 1 M ± 1.6%"),
        (Distinct(1_200_000, ERROR), "≈ 1.2 M ± 1.6%"),
        (Distinct(45_600_000_000, ERROR), "≈ 45.6 G ± 1.6%"),
    ],
)
def test_a_person_sees_whether_each_was_counted(found: Distinct | None, said: str) -> None:
    assert distinct_text(found) == said
