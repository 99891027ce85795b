"""The gates on drift: how far columns are from those of another published night."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from nightjar.inference.job.checks import BASELINE, LAST, DriftCheck
from nightjar.inference.job.model import Job
from nightjar.inference.messages import counted, listed
from nightjar.inference.metrics.drift import Drift, drift, drifts
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.validation.gates import Evidence, Gate, GateResult

_NAMED = 5
"""The most columns, values or groups that a sentence names."""

_CALLED = {
    "psi": "population stability index",
    "nulls": "change of the share of rows without a value",
}

_NOTHING = "nothing to compare with"


def drift_gates(check: DriftCheck, key: str, _: Job) -> Iterator[ColumnDrift | AnyDrift]:
    """The gates of one check. key: the check's place in the job, as `checks[0]`."""
    limits = tuple(check.limits.items())
    if not check.columns:
        yield AnyDrift(key, check.against, limits)
    for column in check.columns:
        yield ColumnDrift(key, check.against, limits, column, len(check.columns))


def nothing_there(key: str, against: str, why: str) -> str:
    """The sentence of a check that has nothing to compare with. why: the other night is not there, or not described."""
    if against == LAST:
        return f"{key}.drift has nothing to compare with and passes: {why}."
    return f"{key}.drift has nothing to compare with: {why}. {_another(key, against)}"


def _another(key: str, against: str) -> str:
    """What helps where a run that a check names is there, but has nothing to compare with."""
    if against == BASELINE:
        return "Make it of the training set: `nightjar baseline JOB --input URI`."
    return f"Name another published run in {key}.against, or write `last`."


def lacking(key: str, against: str, why: str) -> GateResult:
    """The verdict before anything is scored, if the run that a check names is not there."""
    return GateResult("drift", False, _NOTHING, against, nothing_there(key, against, why))


@dataclass(frozen=True)
class _Drifting(Gate):
    """key: the check's place in the job. against: the other night. limits: figure → the largest that is allowed, in
    addition to what differs by chance.
    """

    key: str
    against: str
    limits: tuple[tuple[str, float], ...]

    @property
    @abstractmethod
    def name(self) -> str:
        """The gate's name."""

    @abstractmethod
    def compare(self, now: Profile, before: Profile, night: str) -> GateResult:
        """Compare tonight with the other night. night: that one, for a sentence."""

    def judge(self, evidence: Evidence) -> GateResult:
        """Judge the night. The first night has nothing before it, and passes."""
        if evidence.metrics.profile is None:
            sentence = f"The columns of tonight were not described, so {self.key}.drift cannot be judged. Run again."
            return self._result(False, "not measured", sentence)
        other = evidence.baselines[self.against]
        if other.profile is not None:
            return self.compare(evidence.metrics.profile, other.profile, other.called)
        sentence = nothing_there(self.key, self.against, other.why)
        return self._result(self.against == LAST, _NOTHING, sentence)

    def _result(self, passed: bool, observed: str, sentence: str) -> GateResult:
        limit = ", ".join(f"{name} {limit:g}" for name, limit in self.limits)
        return GateResult(self.name, passed, observed, limit, sentence)

    def _if_empty(self, before: Profile) -> str:
        """What helps if the other night has no rows, after a space."""
        if before.rows:
            return ""
        if self.against != LAST:
            return f" {_another(self.key, self.against)}"
        return (
            f" Let the check warn or ask ({self.key}.on_fail) until a night with rows is published, or take the empty "
            "one back with `nightjar unpublish JOB RUN`."
        )

    def _beyond(self, found: Drift) -> list[str]:
        """What is beyond its limit, in words."""
        said = []
        for name, limit in self.limits:
            value = getattr(found, name)
            if value is not None and abs(value) > (allowed := limit + found.chance[name]):
                said.append(
                    f"its {_CALLED[name]} is {value:.3g}, where {self.key}.{name} = {limit:g} allows {allowed:.3g} "
                    f"between {found.rows_before:,} and {found.rows_now:,} rows"
                )
        return said

    def _remedy(self) -> str:
        keys = listed([f"{self.key}.{name}" for name, _ in self.limits], "or")
        return f"Look at what makes the values, or raise {keys} if tonight is right."


@dataclass(frozen=True)
class ColumnDrift(_Drifting):
    """One column is not further from that of another night than allowed. columns: how many the check names."""

    column: str
    columns: int

    @property
    def name(self) -> str:
        return f"{self.column}.drift"

    def compare(self, now: Profile, before: Profile, night: str) -> GateResult:
        if self.column not in before.columns:
            # The next night will have tonight's profile to compare with. A run that is named stays as it is.
            why = f"{night} has no profile of {self.column!r}"
            return self._result(self.against == LAST, _NOTHING, nothing_there(self.key, self.against, why))
        found = drift(before.columns[self.column], now.columns[self.column], self.columns)
        if any(getattr(found, name) is None for name, _ in self.limits):
            sentence = (
                f"{self.key}.drift cannot compare {self.column!r} with {night}: {found.why}.{self._if_empty(before)}"
            )
            return self._result(False, "cannot be compared", sentence)
        observed = ", ".join(f"{name} {getattr(found, name):.3g}" for name, _ in self.limits)
        if beyond := self._beyond(found):
            said = f"{self.column!r} has drifted from {night}: {'; '.join(beyond)}. {_most(found)}{_only_one(found)} "
            return self._result(False, observed, said + self._remedy())
        said = f"differs from {night} by more than chance explains, but" if found.beyond else f"is as in {night},"
        return self._result(True, observed, f"{self.column!r} {said} within {self.key}.")


@dataclass(frozen=True)
class AnyDrift(_Drifting):
    """No column that is profiled is further from that of another night than allowed. Columns that only one of the
    nights has, or that cannot be compared, do not count; one whose type has changed does.
    """

    @property
    def name(self) -> str:
        return "drift"

    def compare(self, now: Profile, before: Profile, night: str) -> GateResult:
        compared, apart, said = 0, 0, list[str]()
        for name, each in drifts(before, now).items():
            if each.nulls is not None:
                # Of lists and the like only nulls are counted.
                compared += any(getattr(each, name) is not None for name, _ in self.limits)
                apart += each.beyond
                said += [f"{name!r}: {why}.{_only_one(each)}" for why in self._beyond(each)[:1]]
            elif each.changed:
                compared += 1
                said.append(f"{name!r}: {each.why}.")
        observed = f"{len(said)} of {counted(compared, 'column')}"
        if not compared:
            sentence = f"{self.key}.drift found no column that it could compare with {night}.{self._if_empty(before)}"
            return self._result(False, "nothing to compare", sentence)
        if not said:
            differ = (
                f"{apart:,} of {counted(compared, 'column')} differ from {night} by more than chance explains, but all"
            )
            same = f"{counted(compared, 'column')} as in {night},"
            return self._result(True, observed, f"{differ if apart else same} within {self.key}.")
        more = f" And {len(said) - _NAMED} more." if len(said) > _NAMED else ""
        what = f"{observed} drifted from {night}: {' '.join(said[:_NAMED])}{more} {self._remedy()}"
        return self._result(False, observed, what)


def _most(found: Drift) -> str:
    """Where the two nights differ most."""
    shares = [(each.name, each.before / found.rows_before, each.now / found.rows_now) for each in found.groups]
    name, before, now = max(shares, key=lambda each: abs(each[1] - each[2]))
    return f"Most changed: {name}, from {before:.1%} of the rows to {now:.1%}."


def _only_one(found: Drift) -> str:
    """The values that only one of the nights has, after a space."""
    said = ""
    for what, values in (("New", found.new), ("Gone", found.vanished)):
        if values:
            more = f" and {len(values) - _NAMED} more" if len(values) > _NAMED else ""
            said += f" {what}: {', '.join(map(repr, values[:_NAMED]))}{more}."
    return said
