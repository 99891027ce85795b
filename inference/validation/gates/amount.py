"""The gates on the amount of input. They can be judged when the input is found, before anything is scored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from nightjar.inference.job.checks import FilesCheck, RowsCheck
from nightjar.inference.job.model import Job
from nightjar.inference.messages import counted
from nightjar.inference.validation.gates import Evidence, Found, Gate, GateResult, Limited, limits_of


class InputGate(Gate):
    """A gate that needs only `Evidence.found`."""


def rows_gates(check: RowsCheck, key: str, _: Job) -> Iterator[InputGate]:
    """The gates of one check of rows. key: the check's place in the job, as `checks[0]`."""
    yield from (Amount(*limit, "rows") for limit in limits_of(check.rows, f"{key}.rows"))
    if check.rows.change is not None:
        yield SinceLast(f"{key}.rows.change", check.rows.change)


def files_gates(check: FilesCheck, key: str, _: Job) -> Iterator[InputGate]:
    """The gates of one check of files. key: as above."""
    yield from (Amount(*limit, "files") for limit in limits_of(check.files, f"{key}.files"))


@dataclass(frozen=True)
class Amount(Limited, InputGate):
    """The input has at least, or at most, `bound` rows or files."""

    what: Literal["rows", "files"]

    def judge(self, evidence: Evidence) -> GateResult:
        count = evidence.found.rows if self.what == "rows" else evidence.found.files
        name, observed, limit = f"{self.what}.{self.end}", f"{count:,} {self.what}", f"{self.bound:,}"
        more = evidence.found.uncounted if self.what == "rows" else 0
        # More rows can only mend a `min`, and break a `max`.
        if more and self.holds(count) == (self.end == "max"):
            return _not_yet(name, evidence.found, limit, self.key)
        if self.holds(count):
            sentence = f"{_described(evidence.found)}; {self.key} = {limit} holds."
            return GateResult(name, True, observed, limit, sentence)
        side, mend = "more than", "Mend the input"
        if self.end == "min":
            side, mend = "less than", "Run again when the rest of it is there (input.wait waits for it)"
        sentence = f"{_described(evidence.found)}, {side} {self.key} = {limit}. {mend}, or {self.remedy} {self.key}."
        return GateResult(name, False, observed, limit, sentence)


@dataclass(frozen=True)
class SinceLast(InputGate):
    """The number of input rows differs from that of the last published night by at most the share `change`."""

    key: str
    change: float

    def judge(self, evidence: Evidence) -> GateResult:
        found, last = evidence.found, evidence.found.last
        observed = f"{found.rows:,} rows"
        if last is None:
            sentence = f"No earlier night is published, so {self.key} has nothing to compare with and passes."
            return GateResult("rows.last", True, observed, "no earlier night", sentence)
        # The exact decimal that the user wrote, not the nearest binary fraction.
        room = Fraction(repr(float(self.change))) * last.rows_in
        low, high = max(0, -((room - last.rows_in) // 1)), (last.rows_in + room) // 1
        limit = f"{low:,} to {high:,} rows"
        before = f"the {counted(last.rows_in, 'row')} of {last.date} ({last.run_id}), the last published night"
        if found.uncounted and found.rows <= high:
            return _not_yet("rows.last", found, limit, self.key)
        if low <= found.rows <= high:
            sentence = f"{_described(found)}, after {before}; {self.key} = {self.change:g} holds."
            return GateResult("rows.last", True, observed, limit, sentence)
        if not last.rows_in:
            sentence = (
                f"{_described(found)}, after {before}: {self.key} allows none after an empty night, however large it "
                "is. Let the check warn or ask (on_fail) until a night with rows is published, or take the empty one "
                f"back with `nightjar unpublish JOB {last.run_id}`."
            )
            return GateResult("rows.last", False, observed, limit, sentence)
        sentence = (
            f"{_described(found)}, after {before}: {self.key} = {self.change:g} allows {limit}. Check that the input "
            f"is complete and has nothing twice, or raise {self.key}."
        )
        return GateResult("rows.last", False, observed, limit, sentence)


def _not_yet(name: str, found: Found, limit: str, key: str) -> GateResult:
    """Pass for now: the known rows do not break the limit, and more rows may be found."""
    sentence = f"{_described(found)}; {key} is judged when the other rows are read."
    return GateResult(name, True, f"at least {found.rows:,} rows", limit, sentence)


def _described(found: Found) -> str:
    unread = f" ({counted(found.unreadable, 'file')} that cannot be read not counted)" if found.unreadable else ""
    more = f" and those of {counted(found.uncounted, 'file')} not counted yet" if found.uncounted else ""
    return f"The input has {counted(found.rows, 'row')}{more} in {counted(found.files, 'file')}{unread}"
