"""The gate on how the answers of language models ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from nightjar.inference.job.checks import AnswersCheck
from nightjar.inference.job.model import Job
from nightjar.inference.job.sections import budget_rows
from nightjar.inference.metrics.columns import plain
from nightjar.inference.metrics.states import Metrics
from nightjar.inference.predictors.language.answers import CUT, REASON
from nightjar.inference.records import Usage
from nightjar.inference.validation.gates import Evidence, GateResult, NamesRows


def answers_gates(check: AnswersCheck, key: str, job: Job) -> Iterator[Cut]:
    """The gates of one check of answers. key: the check's place in the job, as `checks[0]`."""
    columns = (f"{each.prefix}{REASON}" for each in job.models if REASON in each.outputs)
    yield Cut(f"{key}.answers.cut", next(columns, ""), check.answers.cut)


@dataclass(frozen=True)
class Cut(NamesRows):
    """At most the share `share` of the answers had the most tokens that they may have, so that they were cut.

    What the workers counted is judged: all answers, those of quarantined rows, too. column: the output that says why an
    answer ended, by which rows are named; '' if the job has none.
    """

    share: float

    def judge(self, evidence: Evidence) -> GateResult:
        return self.judge_usage(evidence.usage, evidence)

    def judge_usage(self, usage: Usage, evidence: Evidence | None = None) -> GateResult:
        """Judge what was counted. evidence: has the rows that are named."""
        cut, asked = usage.cut, usage.prompts
        allowed = budget_rows(self.share, asked)
        observed, limit = f"{cut:,} of {asked:,} answers", f"{allowed:,} answers ({self.share:g})"
        said = f"{observed} {'was' if cut == 1 else 'were'} cut at the most tokens that an answer may have"
        if cut <= allowed:
            return GateResult("answers.cut", True, observed, limit, f"{said}; {self.key} = {self.share:g} holds.")
        unnamed = "" if self.column else f" With the output {REASON}: string the rows would be named here."
        sentence = (
            f"{said}, more than the {allowed:,} that {self.key} = {self.share:g} allows. Raise max_tokens in "
            f"model.sampling, which asks for all answers again, or raise {self.key}.{unnamed}"
        )
        where = evidence.offenders.get(self.key, ()) if evidence else ()
        return GateResult("answers.cut", False, observed, limit, sentence, where)

    def spares_shard(self, metrics: Metrics, usage: Usage) -> bool:
        return not usage.cut or not self.column

    def spares(self, column: pa.ChunkedArray) -> bool:
        """As `NamesRows.spares`. Where each answer must follow a schema, those that were cut are in the quarantine."""
        return not pc.any(pc.equal(plain(column), CUT)).as_py()
