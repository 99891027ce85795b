"""The gates of every run: complete, quarantine and, where the job asks for it, rescore."""

from __future__ import annotations

from dataclasses import dataclass

from nightjar.inference.job.sections import budget_rows
from nightjar.inference.messages import counted
from nightjar.inference.validation.gates import Evidence, Gate, GateResult


@dataclass(frozen=True, slots=True)
class Complete(Gate):
    """Every shard has a result, and the night has a row. where: `input.where` of the job. may_be_empty: whether the job
    allows a night without rows.
    """

    where: str = ""
    may_be_empty: bool = False

    def judge(self, evidence: Evidence) -> GateResult:
        shards, missing = evidence.shards, evidence.missing
        observed = f"{shards - missing:,} of {shards:,} shards"
        if not missing:
            done = "The only shard is done." if shards == 1 else f"All {shards:,} shards are done."
            if evidence.rows_in or self.may_be_empty:
                return GateResult("complete", True, observed, "all", done)
            why = f"no row that was read matches input.where ({self.where})" if self.where else "the input has no row"
            sentence = (
                f"{done} But {why}, so that readers would see a night without rows. Mend it, or allow such a night "
                "with the check `rows: {min: 0}`."
            )
            return GateResult("complete", False, f"{observed}, 0 rows", "all, 1 row or more", sentence)
        have = "1 shard has" if missing == 1 else f"{missing:,} shards have"
        sentence = (
            f"{have} no result. Mend the cause that the report names, then run again: only these are scored. "
            "If more tries may help, raise retry.attempts."
        )
        return GateResult("complete", False, observed, "all", sentence)


@dataclass(frozen=True, slots=True)
class Quarantine(Gate):
    """At most the share `share` of the run's rows is quarantined."""

    share: float

    def judge(self, evidence: Evidence) -> GateResult:
        lost, allowed = evidence.rows_in_quarantine, budget_rows(self.share, evidence.rows_in)
        observed, limit = f"{lost:,} of {evidence.rows_in:,} rows", f"{allowed:,} rows ({self.share:g} of the run)"
        if lost <= allowed:
            sentence = f"{counted(lost, 'row')} in quarantine; {allowed:,} are allowed."
            return GateResult("quarantine", True, observed, limit, sentence)
        sentence = (
            f"{counted(lost, 'row')} in quarantine, more than the {allowed:,} that retry.max_quarantined = "
            f"{self.share:g} allows. Replay one with the command that the quarantine prints, mend the input or the "
            "model, or raise retry.max_quarantined."
        )
        return GateResult("quarantine", False, observed, limit, sentence)


@dataclass(frozen=True, slots=True)
class Rescore(Gate):
    """Rows that were scored a second time gave the same outputs. share: of them, may differ."""

    tolerance: float
    share: float = 0.0

    def judge(self, evidence: Evidence) -> GateResult:
        found = evidence.rescored
        within = f"(tolerance {self.tolerance:g})"
        if found is None:
            limit = f"{self.share:.2%}" if self.share else "0"
            return GateResult("rescore", True, "no rows", f"{limit} {within}", "There was no row.")
        compared = f"{counted(found.rows, 'row')} of {counted(found.shards, 'shard')}"
        left_out = f" ({found.changed:,} left out: their input has changed since)" if found.changed else ""
        most = budget_rows(self.share, found.rows)
        observed, limit = f"{found.differing:,} of {compared} differ{left_out}", f"{most:,} {within}"
        if not found.differing:
            sentence = f"Scored again, {compared} came out the same, within {found.greatest:.2g}{left_out}."
            return GateResult("rescore", True, observed, limit, sentence)
        differ = f"Scored again, {found.differing:,} of {compared} came out different"
        if found.differing <= most:
            return GateResult("rescore", True, observed, limit, f"{differ}, and {most:,} may{left_out}.")
        sentence = (
            f"{differ}{f', more than {most:,}' if most else ''}; {found.first}. A device may be computing wrongly, or "
            "the model answers differently each time, or beside other rows (model.rows). Score everything again with "
            "--fresh, on other machines if you suspect one worker; if the model is that inexact, raise "
            "rescore.tolerance or, where whole answers differ, rescore.differing."
        )
        return GateResult("rescore", False, observed, limit, sentence)
