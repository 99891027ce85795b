"""The gate on keys: no two rows that are to be published have the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nightjar.inference.job.checks import UniqueCheck
from nightjar.inference.job.model import Job
from nightjar.inference.messages import counted, listed
from nightjar.inference.validation.gates import Evidence, Gate, GateResult


def unique_gates(check: UniqueCheck, key: str, _: Job) -> Iterator[Unique]:
    """The gate of one check. key: the check's place in the job, as `checks[0]`."""
    yield Unique(f"{key}.unique", check.unique)


@dataclass(frozen=True)
class Unique(Gate):
    """No two rows have the same values in all of these columns. A null is a value, too."""

    key: str
    columns: tuple[str, ...]

    def judge(self, evidence: Evidence) -> GateResult:
        name, what = f"{'+'.join(self.columns)}.unique", listed(map(repr, self.columns), "and")
        found = evidence.repeated.get(self.key)
        if found is None:
            sentence = f"{what} were not compared, so {self.key} cannot be judged. Run again."
            return GateResult(name, False, "not measured", "0 rows", sentence)
        observed = f"{counted(found.rows, 'row')} repeated"
        if not found.where:
            return GateResult(name, True, observed, "0 rows", f"No two rows have the same {what}; {self.key} holds.")
        have = "row has" if found.rows == 1 else "rows have"
        sentence = (
            f"{found.rows:,} {have} the {what} of another row, which {self.key} forbids. Look whether the input has a "
            "file twice, or name all the columns that make a row."
        )
        return GateResult(name, False, observed, "0 rows", sentence, found.where)
