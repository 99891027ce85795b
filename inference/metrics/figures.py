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
    """The lowest score that is a predicted 1, a multiple of 1/4096."""

    true_negatives: int
    """Rows with label 0 that are predicted 0."""

    false_negatives: int
    """Rows with label 1 that are predicted 0."""

    false_positives: int
    """Rows with label 0 that are predicted 1."""

    true_positives: int
    """Rows with label 1 that are predicted 1."""

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
    """One class. A share of nothing is 0."""

    name: str
    """The name of the class, as text."""

    rows: int
    """Rows whose label is the class."""

    predicted: int
    """Rows whose output is the class."""

    right: int
    """Rows whose label and output are the class."""

    precision: float
    """The share of `predicted` that is `right`."""

    recall: float
    """The share of `rows` that is `right`."""

    f1: float
    """The harmonic mean of precision and recall."""


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
    """The groups whose rows are ranked."""

    group: str
    """The name of the column whose values are the groups."""

    k: int
    """How many rows of a group, from the top, are looked at."""

    groups: int
    """Groups with a relevant row, whose label is above 0; the metrics are means over these groups."""

    irrelevant: int = 0
    """Groups without a relevant row, of which no order is better than another."""

    excluded_groups: int = 0
    """Rows that have a label and an output, and no group."""

    sampled: bool = field(default=False, metadata=SELDOM)
    """Whether there are more groups, of which `groups` and `irrelevant` count a sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Labels against an output."""

    task: str
    """The task, as in `evaluation.task` of the job: binary, regression, multiclass or ranking."""

    label: str
    """The name of the column of labels."""

    score: str
    """The name of the output."""

    rows: int
    """Rows that are compared."""

    excluded_null_labels: int
    """Rows without a label."""

    excluded_scores: int
    """Rows with a label whose output is null or NaN."""

    metrics: Mapping[str, Bounded]
    """Metric → figure, by the names that a check uses; the metric that people ask for comes first."""

    missing: Mapping[str, str] = field(default_factory=dict, metadata=SELDOM)
    """Metric → why there is none."""

    positives: int | None = field(default=None, metadata=SELDOM)
    """Rows with label 1; None unless the labels are 0 and 1."""

    predictions: Predictions | None = field(default=None, metadata=SELDOM)
    """The predictions at the threshold 0.5; None unless labels are 0 and 1, and all scores are in [0, 1]."""

    calibration: tuple[CalibrationBin, ...] = field(default=(), metadata=SELDOM)
    """The calibration curve, of the scores that `predictions` are of; empty for a slice."""

    classes: ClassFigures | None = field(default=None, metadata=SELDOM)
    """The figures of classes; None unless labels are one of several classes, and for a slice."""

    groups: RankedGroups | None = field(default=None, metadata=SELDOM)
    """The groups of ranked rows; None unless rows are ranked."""

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
    """Finite numbers."""

    count: int
    """How many numbers there are."""

    mean: float
    """The mean of the numbers."""

    std: float | None
    """The standard deviation of the population; None if a square is too large for a float."""

    min: float
    """The smallest number."""

    max: float
    """The greatest number."""

    quantiles: Mapping[str, float]
    """`p50` and so on → the quantile, within 1/128 of itself."""


@dataclass(frozen=True, slots=True)
class Frequent:
    """A value of a column, as text, and the number of rows that have it."""

    value: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFigures:
    """What the values of a column look like."""

    kind: str
    """The kind of the column: number, text, bool, other, or "" if only nulls were seen."""

    rows: int
    """Rows that are described, nulls included."""

    nulls: int
    """Rows whose value is null."""

    nan: int = 0
    """Values that are NaN."""

    plus_inf: int = 0
    """Values that are +inf."""

    minus_inf: int = 0
    """Values that are -inf."""

    numbers: NumberFigures | None = None
    """The figures of the finite numbers; of text, of its lengths in characters. None if there are none."""

    distinct: int | None = None
    """How many values there are; None for floats and the kind `other`, and if values are too many or too long to count
    each."""

    frequent: tuple[Frequent, ...] = ()
    """The most frequent values, the most frequent first; empty where `distinct` is None."""


@dataclass(frozen=True, slots=True)
class AccumulatorFigures:
    """What an accumulator of the user's own gives."""

    uses: str
    """The class of the accumulator, as "module:Name"."""

    values: Mapping[str, float | None] = field(default_factory=dict)
    """Figure → number; None where there is none."""

    reason: str | None = field(default=None, metadata=SELDOM)
    """Why there are no figures; None if there are figures."""


@dataclass(frozen=True, slots=True)
class Figures:
    """All metrics."""

    columns: Mapping[str, ColumnState]
    """Checked column or float output → figures."""

    evaluation: Evaluation | None = None
    """The labels against an output; None if the job has no label."""

    profile: Mapping[str, ProfileFigures] = field(default_factory=dict)
    """Column → figures, of the columns that the job profiles."""

    slices: Mapping[str, SliceFigures] = field(default_factory=dict)
    """Column → its slices, of the columns by which the job divides the rows."""

    accumulators: Mapping[str, AccumulatorFigures] = field(default_factory=dict)
    """The figures of the user's own accumulators, by name."""

    def own(self) -> dict[str, float]:
        """The figures of the user's own accumulators that there are, by the names that a check uses."""
        found = (
            (f"{name}.{each}", value) for name, of in self.accumulators.items() for each, value in of.values.items()
        )
        return {name: value for name, value in found if value is not None}
