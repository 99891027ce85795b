"""How far an output moved: exact counts, distances as numpy has them, the farthest rows whatever their order."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar.inference.history import movement
from nightjar.inference.history.movement import Movement, OutputMoved, incomparable, kind_of
from nightjar.inference.metrics.columns import plain

NAN, INF = float("nan"), float("inf")


def column(values: Any, kind: pa.DataType) -> pa.ChunkedArray:
    return plain(pa.chunked_array([pa.array(values, kind)], kind))


def moved(
    before: pa.ChunkedArray, now: pa.ChunkedArray, most: int = 20, block: int = 1000, keys: Any = None
) -> OutputMoved:
    names = range(len(before)) if keys is None else keys
    texts = pa.array([f"k{each:05}".encode() for each in names], pa.large_binary())
    made = Movement("score", kind_of(before.type), ("a", "b"), most, 1)
    for at in range(0, len(before), block):
        made.update(texts.slice(at, block), before.slice(at, block), now.slice(at, block))
    return made.results()


NUMBERS = st.one_of(st.none(), st.floats(width=32), st.sampled_from([0.0, -0.0, 1.0, NAN, INF, -INF, 2.0**127]))
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=80)


@settings(deadline=None, max_examples=40)
@given(pairs=PAIRS, block=st.integers(1, 90), most=st.integers(1, 9))
def test_numbers_move_as_numpy_says(pairs: list[tuple[float | None, float | None]], block: int, most: int) -> None:
    before, now = ([pair[side] for pair in pairs] for side in (0, 1))
    found = moved(column(before, pa.float32()), column(now, pa.float32()), most, block)
    ranked, without, lost = [], [], 0
    for row, (one, other) in enumerate(pairs):
        same = one == other or (one is not None and other is not None and np.isnan(one) and np.isnan(other))
        if same:
            continue
        change = NAN if one is None or other is None else other - one
        lost += not np.isfinite(change)
        if np.isfinite(change):
            ranked.append((-abs(change), f"k{row:05}", change))
        else:
            without.append((f"k{row:05}", None))
    ranked.sort()
    assert (found.changed, found.unmeasured) == (len(ranked) + lost, lost)
    assert found.changed + found.unchanged == len(pairs)
    assert [(row.key[0], row.change) for row in found.rows] == [*(each[1:] for each in ranked), *without][:most]
    distances = np.sort(np.array([*(-each[0] for each in ranked), *[0.0] * found.unchanged]))
    for share, value in ((0.5, found.median), (0.99, found.p99), (1.0, found.max)):
        if len(distances):
            exact = distances[max(0, int(np.ceil(share * len(distances))) - 1)]
            assert value == pytest.approx(exact, rel=1 / 128)
        else:
            assert value is None


@pytest.mark.parametrize(
    ("kind", "before", "now", "change"),
    [
        (pa.int8(), -128, 127, 255.0),
        (pa.int64(), -(2**63), 2**63 - 1, 2.0**64),
        (pa.int64(), 2**62, 2**62 + 1, 0.0),
        (pa.uint64(), 2**64 - 1, 2**64 - 2, 0.0),
        (pa.float16(), 1.0, 1.5, 0.5),
        (pa.decimal128(38, 2), Decimal("1.10"), Decimal("1.35"), 0.25),
        (pa.list_(pa.float32()), [0.0, 0.0], [3.0, 4.0], 5.0),
        (pa.list_(pa.float32(), 2), [1.0, 1.0], [1.0, 0.0], 1.0),
        (pa.large_list(pa.uint8()), [255, 0], [0, 0], 255.0),
        (pa.fixed_shape_tensor(pa.float32(), [2]), [0.0, 0.0], [3.0, 4.0], 5.0),
    ],
)
def test_the_distance_of_any_kind_of_number_or_vector(kind: pa.DataType, before: Any, now: Any, change: float) -> None:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    found = moved(column([before, before, None], storage), column([now, before, None], storage))
    assert kind_of(kind) == found.kind == ("vector" if isinstance(before, list) else "number")
    assert (found.changed, found.unchanged, found.unmeasured) == (1, 2, 0)
    assert [(row.key, row.change) for row in found.rows] == [(("k00000",), change)]
    assert found.max == abs(change)


@pytest.mark.parametrize(
    ("one", "other", "before", "now", "change"),
    [
        (pa.int64(), pa.float64(), 2**53, 2.0**53 + 2, 2.0),
        (pa.int64(), pa.float32(), 2**63 - 1, 0.5, -(2.0**63)),
        (pa.uint64(), pa.int64(), 2**63, -1, -(2.0**63)),
        (pa.uint64(), pa.int32(), 2**53, 3, -(2.0**53) + 3),
    ],
)
def test_numbers_of_another_type_are_compared_as_float64(
    one: pa.DataType, other: pa.DataType, before: Any, now: Any, change: float
) -> None:
    same = 2**63 - 1 if other == pa.int64() else 2**24
    olds, news = [before, same, None], [now, same, None]
    pairs = (olds, one, news, other, change), (news, other, olds, one, -change)
    for left, left_kind, right, right_kind, moves in pairs:
        found = moved(column(left, left_kind), column(right, right_kind))
        assert (found.changed, found.unchanged, found.unmeasured) == (1, 2, 0)
        assert [(row.key, row.change) for row in found.rows] == [(("k00000",), moves)]
        lists = [
            column([[value] for value in values], pa.list_(kind))
            for values, kind in ((left, left_kind), (right, right_kind))
        ]
        found = moved(*lists)
        assert (found.changed, found.unchanged, found.max) == (1, 2, abs(change))


def test_a_number_that_is_none_any_more_has_no_distance() -> None:
    """Such a row comes after those with a distance."""
    before = column([0.5, 0.5, None, NAN, NAN, 0.1], pa.float64())
    now = column([None, INF, 0.5, NAN, 0.2, 0.2], pa.float64())
    found = moved(before, now)
    assert (found.changed, found.unchanged, found.unmeasured) == (5, 1, 4)
    assert [(row.key, row.change) for row in found.rows] == [
        (("k00005",), 0.1),
        *(((f"k0000{row}",), None) for row in (0, 1, 2, 4)),
    ]


def test_vectors_of_other_lengths_or_without_a_number_have_no_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movement, "_SLICE", 2)
    before = [[1.0, 2.0], [1.0], None, [1.0, None], [NAN, 1.0], [], None]
    now = [[1.0, 2.5], [1.0, 2.0], [1.0], [1.0, 2.0], [NAN, 1.0], [], None]
    kind = pa.list_(pa.float64())
    found = moved(column(before, kind), column(now, kind))
    assert (found.changed, found.unchanged, found.unmeasured) == (4, 3, 3)
    assert [row.change for row in found.rows] == [0.5, None, None, None]
    assert (found.rows[0].before, found.rows[0].now) == ("[1, 2]", "[1, 2.5]")


def test_vectors_move_as_numpy_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movement, "_SLICE", 7)
    random = np.random.default_rng(3)
    one = random.normal(size=(100, 16)).astype(np.float32)
    other = one + (random.random((100, 1)) < 0.5) * random.normal(size=(100, 16)).astype(np.float32)
    kind = pa.list_(pa.float32(), 16)
    found = moved(column(list(one), kind), column(list(other.astype(np.float32)), kind), 5, 30)
    exact = np.linalg.norm(other.astype(np.float32).astype(float) - one.astype(float), axis=1)
    assert [row.key[0] for row in found.rows] == [f"k{each:05}" for each in np.argsort(-exact)[:5]]
    np.testing.assert_allclose([row.change for row in found.rows], np.sort(exact)[::-1][:5])
    assert found.changed == int((exact > 0).sum())


VALUES = st.one_of(st.none(), st.sampled_from(["AA", "DL", "null", ""]))


@settings(deadline=None, max_examples=40)
@given(pairs=st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=60), block=st.integers(1, 70))
def test_of_values_each_change_is_counted(pairs: list[tuple[str | None, str | None]], block: int) -> None:
    before, now = (pa.chunked_array([pa.array([pair[side] for pair in pairs], pa.string())]) for side in (0, 1))
    found = moved(before, now, 3, block)
    wanted = [pair for pair in pairs if pair[0] != pair[1]]
    assert (found.changed, found.unchanged) == (len(wanted), len(pairs) - len(wanted))
    counts = sorted((-wanted.count(pair), str(pair[0]), str(pair[1]), pair) for pair in set(wanted))
    assert [(each.rows, each.before, each.now) for each in found.changes] == [
        (-count, *pair) for count, _, _, pair in counts[:3]
    ] or len({each[:3] for each in counts}) < len(counts)
    rows = [f"k{row:05}" for row, pair in enumerate(pairs) if pair[0] != pair[1]]
    assert [row.key[0] for row in found.rows] == rows[:3]
    assert (found.median, found.max, found.changes_cut) == (None, None, False)


@pytest.mark.parametrize(
    ("kind", "before", "now"),
    [
        (pa.bool_(), True, False),
        (pa.date32(), dt.date(2026, 11, 19), dt.date(2026, 11, 20)),
        (pa.timestamp("us", "UTC"), dt.datetime(2026, 11, 19), dt.datetime(2026, 11, 20)),
        (pa.struct([("label", pa.string())]), {"label": "a"}, {"label": "b"}),
        (pa.list_(pa.string()), ["a"], ["b"]),
        (pa.binary(), b"a", b"b"),
    ],
)
def test_any_other_type_is_a_value(kind: pa.DataType, before: Any, now: Any) -> None:
    found = moved(column([before, before, None], kind), column([now, before, None], kind))
    assert (found.kind, found.changed, found.unchanged) == ("value", 1, 2)
    assert [each.rows for each in found.changes] == [1]
    assert found.changes[0].before != found.changes[0].now


def test_texts_that_nearly_all_differ_have_no_most_frequent_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the rows come: what is counted stays bounded."""
    monkeypatch.setattr(movement, "MOST_CHANGES", 50)
    texts = [pa.chunked_array([pa.array([f"{side}{row}" for row in range(60)], pa.string())]) for side in "ab"]
    for block in (7, 60):
        found = moved(texts[0], texts[1], 4, block)
        assert (found.changed, found.changes, found.changes_cut, len(found.rows)) == (60, (), True, 4)


def test_the_rows_are_the_same_ones_in_any_order() -> None:
    """Also where many rows are equally far."""
    random = np.random.default_rng(1)
    now = random.integers(0, 4, 500).astype(float)
    wanted = None
    for block in (1, 37, 500):
        order = random.permutation(500)
        found = moved(column([0.0] * 500, pa.float64()), column(now[order], pa.float64()), 9, block, order.tolist())
        wanted = wanted or found
        assert found == wanted
    assert wanted is not None
    assert [row.key[0] for row in wanted.rows] == [f"k{each:05}" for each in np.flatnonzero(now == 3)[:9]]


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (pa.float32(), pa.float64(), ""),
        (pa.int8(), pa.float64(), ""),
        (pa.string(), pa.large_string(), ""),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), ""),
        (pa.list_(pa.float32()), pa.list_(pa.float64(), 3), ""),
        (pa.float32(), pa.string(), "it is float32 in one and string in other; score one of the runs again"),
        (pa.bool_(), pa.int8(), "it is bool in one and int8 in other; score one of the runs again"),
        (pa.date32(), pa.timestamp("s"), "it is date32 in one and timestamp[s] in other; score one of the runs again"),
        (pa.float32(), None, "only one has it"),
        (None, pa.float32(), "only other has it"),
    ],
)
def test_outputs_of_other_types_are_compared_if_they_can_be(
    before: pa.DataType | None, now: pa.DataType | None, why: str
) -> None:
    assert incomparable(before, now, ("one", "other")) == why
    if before is not None and now is not None and not why:
        empty = [plain(pa.chunked_array([], type=kind)) for kind in (before, now)]
        assert moved(*empty).changed == 0
