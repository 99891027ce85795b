"""The gates on drift: how far columns are from those of another published night."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

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


def drift_gates(check: DriftCheck, key: str, _: Job) -> Iterator[DriftGate]:
    """The gates of one check. key: the check's place in the job, as `checks[0]`."""
    for column in check.columns or ("",):
        yield DriftGate(key, check.against, tuple(check.limits.items()), column, len(check.columns))


@dataclass(frozen=True)
class DriftGate(Gate):
    """A column is not further from that of another night than allowed. Without a column, none that is profiled is. Then
    columns that only one of the nights has, or that cannot be compared, do not count; one whose type has changed does.
    """

    key: str
    """The check's place in the job, as `checks[0]`."""

    against: str
    """The other night: `last`, `baseline`, or the name of a run."""

    limits: tuple[tuple[str, float], ...]
    """Each figure, `psi` or `nulls`, and its largest allowed value, in addition to what differs by chance."""

    column: str
    """The name of the column; empty for all columns that are profiled."""

    columns: int
    """How many columns the check names, by which the allowance for chance grows; 0 for all."""

    def judge(self, evidence: Evidence) -> GateResult:
        """Judge the night. The first night has nothing before it, and passes."""
        now, other = evidence.metrics.profile, evidence.baselines[self.against]
        if now is not None and not now.rows and not evidence.rows_in:
            return self._result(True, "no rows", f"There are no rows whose columns {self.key}.drift could compare.")
        if now is None:
            sentence = f"The columns of tonight were not described, so {self.key}.drift cannot be judged. Run again."
            return self._result(False, "not measured", sentence)
        if other.profile is None:
            return self.nothing(other.why, warns=other.unreadable)
        if not self.column:
            return self._compare_all(now, other.profile, other.called)
        if self.column not in other.profile.columns:
            return self.nothing(f"{other.called} has no profile of {self.column!r}")
        return self._compare_one(now, other.profile, other.called)

    def nothing(self, why: str, *, warns: bool = False) -> GateResult:
        """The verdict if there is nothing to compare with. The next night will have tonight's profile; a run that is
        named stays as it is. why: the other night is not there, or not described. warns: it does not pass, but nobody
        could mend that.
        """
        said = f"{self.key}.drift has nothing to compare with"
        if self.against != LAST:
            return self._result(False, _NOTHING, f"{said}: {why}. {self._another}")
        if warns:
            return replace(self._result(False, _NOTHING, f"{said}: {why}."), on_fail="warn")
        return self._result(True, _NOTHING, f"{said} and passes: {why}.")

    @property
    def _another(self) -> str:
        """What helps if a run that the check names has nothing to compare with."""
        if self.against == BASELINE:
            return "Make it of the training set: `nightjar baseline JOB --input URI`."
        return f"Name another published run in {self.key}.against, or write `last`."

    def _result(self, passed: bool, observed: str, sentence: str) -> GateResult:
        limit = ", ".join(f"{name} {limit:g}" for name, limit in self.limits)
        return GateResult(".".join(filter(None, (self.column, "drift"))), passed, observed, limit, sentence)

    def _if_empty(self, before: Profile) -> str:
        """What helps if the other night has no rows, after a space."""
        if before.rows:
            return ""
        if self.against != LAST:
            return f" {self._another}"
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

    def _compare_one(self, now: Profile, before: Profile, night: str) -> GateResult:
        """Compare the column with that of the other night. night: that one, for a sentence."""
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
        said = f"differs by more than chance explains from {night}, but is" if found.beyond else f"is as in {night},"
        return self._result(True, observed, f"{self.column!r} {said} within {self.key}.")

    def _compare_all(self, now: Profile, before: Profile, night: str) -> GateResult:
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
                f"{apart:,} of {counted(compared, 'column')} differ by more than chance explains from {night}; all are"
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
