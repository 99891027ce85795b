"""Drift: right by its definition, found where there is some, and not where only chance is at work."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazily import lazily
from nightjar.inference.metrics.drift import SURE, Drift, _chi_squared, drift
from nightjar.inference.metrics.profile import ColumnProfile

stats = lazily("scipy", "stats")


def profile(values: Any, kind: pa.DataType | None = None) -> ColumnProfile:
    found = ColumnProfile()
    found.update(pa.chunked_array([pa.array(values, kind)]))
    return found


def compared(before: Any, now: Any, columns: int = 1) -> Drift:
    found = drift(profile(before), profile(now), columns)
    assert found.nulls is not None
    return found


def test_the_figures_are_those_of_their_definitions() -> None:
    found = compared(["a"] * 60 + ["b"] * 40, ["a"] * 30 + ["b"] * 60 + ["c"] * 10)
    assert [(each.name, each.before, each.now) for each in found.groups] == [
        ("b", 40, 60),
        ("a", 60, 30),
        ("c", 0, 10),
        ("other values", 0, 0),
        ("no value", 0, 0),
    ]
    p, q = ((np.array(counts) + 0.5) / 102.5 for counts in ([40, 60, 0, 0, 0], [60, 30, 10, 0, 0]))
    assert found.psi == pytest.approx(((q - p) * np.log(q / p)).sum())
    assert (found.new, found.vanished) == (("c",), ())


def test_spans_have_a_tenth_of_the_other_nights_rows_each_and_heavy_values_a_span_of_their_own() -> None:
    random = np.random.default_rng(1)
    found = compared(random.random(50_000), random.random(50_000))
    *spans, missing = found.groups
    assert len(spans) == 10
    assert all(4000 < each.before < 6000 for each in spans)
    assert (missing.name, missing.before, missing.now) == ("no value", 0, 0)
    half = np.where(random.random(50_000) < 0.5, 0.0, 1 + random.random(50_000))
    zeros = compared(half, half).groups
    assert next(each for each in zeros if each.before > 20_000).before == (half == 0).sum()


@pytest.mark.parametrize(
    ("change", "psi"),
    [
        (lambda values: values * 0, 1.0),  # a feature that is silently 0
        (lambda values: values * 1.609, 0.5),  # miles that became kilometres
        (lambda values: values + 3, 0.25),
        (lambda values: np.where(np.arange(len(values)) % 3, values, np.nan), 1.0),
        (lambda values: np.where(np.arange(len(values)) % 3, values, np.inf), 1.0),
        (lambda values: -values, 5.0),
    ],
)
def test_a_change_of_numbers_is_found(change: Any, psi: float) -> None:
    random = np.random.default_rng(2)
    before, now = random.gamma(9, 2, 20_000), change(random.gamma(9, 2, 20_000))
    assert compared(before, now).psi > psi
    assert compared(now, before).psi > psi / 4


def test_a_category_that_was_renamed_is_found_and_named() -> None:
    random = np.random.default_rng(3)
    before = random.choice(["UA", "AA", "DL", "B6"], 5000)
    now = np.where(before == "DL", "Delta", before)
    found = compared(before, now)
    assert found.psi > 1
    assert (found.new, found.vanished) == (("Delta",), ("DL",))


def test_more_rows_without_a_value_are_found() -> None:
    found = compared([1.0] * 900 + [None] * 100, [1.0] * 700 + [None] * 300)
    assert found.nulls == pytest.approx(0.2)
    assert found.nulls > found.chance["nulls"]


@pytest.mark.parametrize("rows", [50, 500, 20_000])
@pytest.mark.parametrize("shape", ["normal", "lognormal", "few", "text", "nulls"])
def test_chance_alone_hardly_ever_exceeds_what_is_allowed_for_it(shape: str, rows: int) -> None:
    """200 pairs of nights that differ by chance: one false alarm in a thousand is expected, and at most 2 of 200."""
    random = np.random.default_rng(4)
    draw: dict[str, Any] = {
        "normal": lambda n: random.normal(size=n),
        "lognormal": lambda n: random.lognormal(3, 2, n),
        "few": lambda n: random.poisson(1.5, n).astype(float),
        "text": lambda n: random.choice(["a", "b", "c", "d", "e"], n, p=[0.6, 0.2, 0.1, 0.07, 0.03]),
        "nulls": lambda n: np.where(random.random(n) < 0.1, None, random.random(n)),
    }
    alarms = dict.fromkeys(("psi", "nulls"), 0)
    for _ in range(200):
        found = compared(draw[shape](rows), draw[shape](rows // 2))
        for name in alarms:
            value = getattr(found, name)
            alarms[name] += value is not None and abs(value) > found.chance[name]
    assert max(alarms.values()) <= 2, alarms


@pytest.mark.parametrize(("before", "now"), [([None], [None]), ([math.nan, None], [None]), ([None], [math.nan])])
def test_two_nights_without_any_value_are_alike(before: list[Any], now: list[Any]) -> None:
    found = drift(profile(before * 10, pa.float64()), profile(now * 10, pa.float64()))
    assert found.psi is not None
    assert (found.psi, found.nulls) == (0, 0)
    assert found.chance["psi"] == 0


CLOSE: dict[str, Callable[[np.random.Generator, float], np.ndarray]] = {
    "a year": lambda random, at: np.full(20_000, 2025 + at),
    "ids of stores": lambda random, at: random.integers(4711, 4721, 20_000) + 10 * int(at),
    "days": lambda random, at: random.integers(20_390, 20_400, 20_000) + 80 * int(at),
    "latitudes": lambda random, at: random.normal(52.55 + 0.3 * at, 0.02, 20_000),
    "kelvins": lambda random, at: random.normal(290 + 4 * at, 2, 20_000),
    "nanoseconds": lambda random, at: 1.7e18 + 8.64e13 * (at + random.random(20_000)),
}


@pytest.mark.parametrize("shape", CLOSE)
def test_numbers_that_lie_close_together_are_told_apart(shape: str) -> None:
    random = np.random.default_rng(8)
    before, alike, other = (profile(CLOSE[shape](random, at), None) for at in (0, 0, 1))
    same, moved = drift(before, alike), drift(before, other)
    assert same.psi is not None and moved.psi is not None
    assert same.psi <= same.chance["psi"] + 0.002 and not same.beyond
    assert moved.psi > 2
    spans = [group.name.split(" to ") for group in moved.groups if " to " in group.name]
    assert all(low != high for low, high in spans)


def test_rare_values_do_not_differ_by_chance() -> None:
    """Of sixty values, most of which are rare, as (Zipf) names are; and a rare null of a short night."""
    random = np.random.default_rng(11)
    shares = 1 / np.arange(1, 61) ** 1.7
    shares /= shares.sum()
    alarms = 0
    for _ in range(300):
        before, now = (profile(random.choice(60, rows, p=shares).astype(str), pa.string()) for rows in (900, 700))
        found = drift(before, now)
        assert found.psi is not None
        alarms += found.psi > found.chance["psi"]
    assert alarms <= 4
    common = profile([None] * 25 + [1.0] * 249_975, pa.float64())
    assert not any(drift(common, profile([None] * nulls + [1.0] * 3000, pa.float64())).beyond for nulls in (0, 1, 2))


@pytest.mark.parametrize("shape", ["alike", "names"])
@pytest.mark.parametrize("rows", [(2000, 20_000), (20_000, 2000), (1000, 100_000)])
def test_many_values_of_about_one_frequency_do_not_differ_by_chance(shape: str, rows: tuple[int, int]) -> None:
    """Of 200 stores, those that chance made the most frequent ones of one night are ordinary ones of the other."""
    random = np.random.default_rng(12)
    shares = np.ones(200) if shape == "alike" else 1 / np.arange(1, 201)
    stores = np.array([f"store-{number}" for number in range(200)])
    alarms = 0
    for _ in range(100):
        before, now = (profile(np.repeat(stores, random.multinomial(n, shares / shares.sum()))) for n in rows)
        alarms += drift(before, now).beyond
    assert alarms <= 2


def test_what_is_allowed_for_chance_grows_with_the_number_of_columns() -> None:
    random = np.random.default_rng(5)
    values = [None, *random.random(999)]
    one, many = (compared(values, values, columns) for columns in (1, 200))
    assert all(many.chance[name] > one.chance[name] for name in one.chance)


@pytest.mark.parametrize("freedom", [2, 5, 11, 51])
def test_the_quantile_of_chi_squared_is_right(freedom: int) -> None:
    exact = stats.chi2.ppf(SURE, freedom)
    assert _chi_squared(freedom, stats.norm.ppf(SURE)) == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ([], [1.0], "the other night has no rows"),
        ([1.0], [], "tonight has no rows"),
        ([1.0], ["a"], "it holds text and held numbers"),
        ([True, None], [1.0], "it holds numbers and held bools"),
    ],
)
def test_what_cannot_be_compared_has_a_reason(before: list[Any], now: list[Any], said: str) -> None:
    found = drift(profile(before), profile(now))
    assert (found.psi, found.nulls, found.why, found.changed) == (None, None, said, " held " in said)


def test_of_other_types_the_rows_without_a_value_are_compared() -> None:
    found = compared([[1.0]] * 1000, [[1.0]] * 600 + [None] * 400)
    assert (found.psi, found.nulls) == (None, 0.4)
    assert found.why == "it holds neither numbers nor text nor bools"
    assert found.chance.keys() == {"nulls"}
    assert [(each.name, each.before, each.now) for each in found.groups] == [
        ("a value", 1000, 600),
        ("no value", 0, 400),
    ]


@pytest.mark.parametrize("now", [[None, None], [math.nan], [math.inf], [math.inf, -math.inf]])
def test_a_night_without_any_finite_value_is_compared(now: list[Any]) -> None:
    found = drift(profile(np.arange(1.0, 2000.0)), profile(now * 500, pa.float64()))
    assert found.psi is not None
    assert found.psi > 3


def codes(first: int, number: int, rows: int = 20_000) -> list[str]:
    """As many different codes of four characters, each about as often as the others."""
    return [f"{first + index % number:04}" for index in range(rows)]


@pytest.mark.parametrize(("before", "now"), [((0, 300), (5000, 300)), ((0, 200), (140, 460)), ((0, 460), (0, 200))])
def test_texts_of_more_values_than_are_counted_are_compared_by_their_hashes(
    before: tuple[int, int], now: tuple[int, int]
) -> None:
    """Codes that are as long as those before, whether one of the nights or both have too many to count each."""
    assert compared(codes(*before), codes(*before)).psi == 0
    found = compared(codes(*before), codes(*now))
    assert found.psi > 0.2 + found.chance["psi"]
    assert found.groups[0].name == "texts 1 of 256 by their hashes"
    assert sum(each.before for each in found.groups) == sum(each.now for each in found.groups) == 20_000


def test_hashes_hardly_ever_tell_nights_apart_by_chance() -> None:
    random = np.random.default_rng(12)
    for _ in range(100):
        nights = [[f"{code:04}" for code in random.integers(0, 2000, 3000)] for _ in range(2)]
        found = compared(*nights)
        assert found.psi <= found.chance["psi"]


def test_long_texts_are_compared_by_their_lengths() -> None:
    random = np.random.default_rng(6)

    def texts(mean: float) -> list[str]:
        return [f"{number:09}" + "x" * length for number, length in enumerate(random.poisson(mean, 3000))]

    assert compared(texts(40), texts(40)).psi < 0.05
    assert compared(texts(40), texts(60)).psi > 1
