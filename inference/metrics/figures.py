"""A run's metrics as frozen records. The manifest keeps them, and `--json` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from nightjar.inference.jsonform import SELDOM
from nightjar.inference.metrics.columns import ColumnState

_VALUE_CHARS = 40
"""The most characters of a slice's value or of a class in a sentence."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A figure computed from bins. bound: its largest error. sampled: the number of groups of rows that it is of, if it
    is of a sample of them.
    """

    value: float
    bound: float = 0.0
    sampled: int | None = field(default=None, metadata=SELDOM)


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions against labels, in rows: a score of at least `threshold` is a predicted 1."""

    threshold: float
    true_negatives: int
    false_negatives: int
    false_positives: int
    true_positives: int

    @property
    def rows(self) -> int:
        """All rows."""
        return self.true_negatives + self.false_negatives + self.false_positives + self.true_positives


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """The scores of one bin of the calibration curve: how many, their mean, and the share of them with label 1."""

    rows: int
    mean_score: float
    positive_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFigure:
    """One class. rows: those with this label, of which the output of `right` names the class, too. predicted: all rows
    whose output does. A share of nothing is 0.
    """

    name: str
    rows: int
    predicted: int
    right: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True, slots=True)
class Confused:
    """The rows of one label that have one other output."""

    label: str
    output: str
    rows: int


@dataclass(frozen=True, slots=True)
class ClassFigures:
    """Classes against classes. per_class: by name. confusion: with `per_class` the confusion matrix without zeros, the
    most frequent mistakes first; `left_out` rows are of others.
    """

    per_class: tuple[ClassFigure, ...] = ()
    confusion: tuple[Confused, ...] = ()
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class RankedGroups:
    """The groups whose rows are ranked. group: the column. k: how many rows of a group, from the top, are looked at.

    groups: the number of groups with a relevant row, whose label is above 0; the metrics are means over these.
    irrelevant: the number of others, of which no order is better than another. excluded_groups: rows that have a label
    and an output, and no group. sampled: whether there are more groups, of which these are a sample.
    """

    group: str
    k: int
    groups: int
    irrelevant: int = 0
    excluded_groups: int = 0
    sampled: bool = field(default=False, metadata=SELDOM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Labels against an output. rows: the number of rows that are compared.

    excluded_null_labels: rows without a label. excluded_scores: other rows whose output is null or NaN. metrics: by the
    names that a check uses; the one that people ask for comes first. missing: metric → why there is none. positives: of
    labels 0 and 1 the rows with label 1. predictions: of scores in [0, 1], at the threshold 0.5; calibration: of these.
    classes: of labels that are one of several classes. groups: of ranked rows.
    """

    task: str
    label: str
    score: str
    rows: int
    excluded_null_labels: int
    excluded_scores: int
    metrics: Mapping[str, Bounded]
    missing: Mapping[str, str] = field(default_factory=dict, metadata=SELDOM)
    positives: int | None = field(default=None, metadata=SELDOM)
    predictions: Predictions | None = field(default=None, metadata=SELDOM)
    calibration: tuple[CalibrationBin, ...] = field(default=(), metadata=SELDOM)
    classes: ClassFigures | None = field(default=None, metadata=SELDOM)
    groups: RankedGroups | None = field(default=None, metadata=SELDOM)

    @property
    def lead(self) -> str:
        """The metric that people ask for; empty if there is none."""
        return next(iter(self.metrics), "")

    def brief(self) -> Evaluation:
        """The same without the figures of single bins and classes."""
        return replace(self, calibration=(), classes=None)


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows with one value of a column, as text; None for those where it is null."""

    value: str | None
    evaluation: Evaluation

    @property
    def called(self) -> str:
        """The value, for people."""
        return short_name(self.value)


def short_name(value: str | None) -> str:
    """The value of a slice, or the name of a class, for people: short, and never empty."""
    if value is None:
        return "null"
    return value if 0 < len(value) <= _VALUE_CHARS else f"{value[:_VALUE_CHARS]!r}{'…' if value else ''}"


@dataclass(frozen=True, slots=True)
class SliceFigures:
    """A column by whose values rows are divided. slices: those with the most compared rows come first.

    cut: whether the column has too many values, or too long ones; then there are no slices.
    """

    slices: tuple[Slice, ...] = ()
    cut: bool = False


@dataclass(frozen=True, slots=True)
class NumberFigures:
    """Finite numbers. std: of the population; None if a square is too large for a float. quantiles: `p50` and so on,
    each within 1/128 of itself.
    """

    count: int
    mean: float
    std: float | None
    min: float
    max: float
    quantiles: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Frequent:
    """A value of a column, as text, and the number of rows that have it."""

    value: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFigures:
    """What the values of a column look like. kind: number, text, bool, other, or "" if only nulls were seen.

    numbers: of text, its lengths in characters. distinct: how many values there are; None for other types, and if
    there are too many to count each. frequent: the most frequent values; empty likewise.
    """

    kind: str
    rows: int
    nulls: int
    nan: int = 0
    plus_inf: int = 0
    minus_inf: int = 0
    numbers: NumberFigures | None = None
    distinct: int | None = None
    frequent: tuple[Frequent, ...] = ()


@dataclass(frozen=True, slots=True)
class AccumulatorFigures:
    """What an accumulator of the user's own gives. uses: its class, as "module:Name". code: a digest of what it
    consists of beside the code that scores. values: figure → number; None where there is none. reason: why there are
    no figures.
    """

    uses: str
    code: str
    values: Mapping[str, float | None] = field(default_factory=dict)
    reason: str | None = field(default=None, metadata=SELDOM)


@dataclass(frozen=True, slots=True)
class Figures:
    """All metrics. columns: checked column or float output → figures.

    evaluation: only if the job has a label. profile: column → figures, of those that the job profiles. slices: column →
    its slices, of those by which the job divides the rows. accumulators: those of the user's own, by name.
    """

    columns: Mapping[str, ColumnState]
    evaluation: Evaluation | None = None
    profile: Mapping[str, ProfileFigures] = field(default_factory=dict)
    slices: Mapping[str, SliceFigures] = field(default_factory=dict)
    accumulators: Mapping[str, AccumulatorFigures] = field(default_factory=dict)

    def own(self) -> dict[str, float]:
        """The figures of the user's own accumulators that there are, by the names that a check uses."""
        found = (
            (f"{name}.{each}", value) for name, of in self.accumulators.items() for each, value in of.values.items()
        )
        return {name: value for name, value in found if value is not None}
