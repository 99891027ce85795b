"""A run's progress, folded from its ledger. The display, the artifacts and the API show the same figures."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from nightjar.inference.ledger.holders import Holder
from nightjar.inference.ledger.lines import Doing, Line, Opened, Planned, Revoked, Split
from nightjar.inference.records import NO_COUNTS, Counts, Failed, Receipt
from nightjar.inference.usage import NO_USAGE, NOTHING_SPENT, Spent, Usage


@dataclass(frozen=True, slots=True)
class TokenRates:
    """Of the prompts that a command asked; 0 where there is no figure. The rates per second are of all requests
    together, over the time from the first shard's start to the last one's end.
    """

    prompts_per_s: float = 0.0
    """Prompts per second, each counted once however often its request was repeated."""

    input_tokens_per_s: float = 0.0
    """Tokens of the prompts per second."""

    output_tokens_per_s: float = 0.0
    """Tokens of the answers per second."""

    ms_per_output_token: float = 0.0
    """Milliseconds from sending a request until its whole answer was there, so with the time for the prompt and with
    the wait at the endpoint, divided by the answer's tokens; the mean over all tokens."""


def _share(of: float, whole: float) -> float:
    return of / whole if whole > 0 else 0.0


def least(sizes: Iterable[int]) -> int:
    """The smallest one; 0, which stands for none, counts only where there are no others."""
    return min(filter(None, sizes), default=0)


def lowest(ceilings: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Of each of several models the lowest ceiling that memory has shown; 0 if it has shown none."""
    return tuple(least(of_model) for of_model in zip_longest(*ceilings, fillvalue=0))


@dataclass
class Progress:
    """Totals of a run, folded from the lines of its ledger."""

    shards: int = 0
    """Shards of the plan."""

    rows: int = 0
    """Rows of the plan, without those of files that could not be read."""

    done_shards: int = 0
    """Shards that are committed."""

    counts: Counts = NO_COUNTS
    """The counters of the committed shards, by whichever command."""

    reused_shards: int = 0
    """Shards that were committed before this command, or whose results it took over."""

    reused_rows: int = 0
    """Rows that were committed before this command, or whose outputs it took from an earlier night."""

    retries: int = 0
    """Requests to the storage that were repeated for shards that this command committed."""

    failed_attempts: int = 0
    """Attempts that failed, and receipts that the audit revoked."""

    deaths: int = 0
    """Attempts whose process died."""

    first_start: float = 0.0
    """When the first attempt of this command that was committed began, in seconds since 1970."""

    last_end: float = 0.0
    """When the last attempt of this command that was committed ended, in seconds since 1970."""

    step: str = ""
    """The present step: plan, load, score, validate or publish; of a revision that is left for another one, retire."""

    writer: str = ""
    """The nonce of the step's writer."""

    uncounted: int = 0
    """Planned shards whose rows are not known before they are read; `rows` has the rows read of them."""

    ceilings: tuple[int, ...] = ()
    """As of receipts: the lowest of all."""

    usage: Usage = NO_USAGE
    """What language models took in this run, by whichever command."""

    usage_before: Usage = NO_USAGE
    """What language models took in earlier commands."""

    spent: Spent = NOTHING_SPENT
    """Seconds of this score step's workers, in attempts that succeeded."""

    failed_s: float = 0.0
    """Seconds of this score step's workers, in attempts that failed."""

    flow_run: str = ""
    """The flow run of the last score step."""

    earlier_rows: int = 0
    """Rows that earlier score steps of the same flow run scored: a failed step is repeated."""

    earlier_s: float = 0.0
    """The seconds in which they did."""

    def fold(self, line: Line) -> None:
        """Count one line of the ledger."""
        match line:
            case Planned():
                self._plan(line)
            case Receipt():
                self._receipt(line)
            case Revoked():
                self.done_shards -= 1
                self.counts -= line.counts
                self.failed_attempts += 1
            case Failed():
                self.failed_attempts += 1
                self.failed_s += line.spent_s
                self.deaths += line.died
            case Split():
                self.shards += line.into - 1
            case Opened():
                self._open(line.writer)
            case Doing():
                self.step = line.step
            case _:
                pass

    def _open(self, writer: Holder) -> None:
        """A step begins. If it scores, results of earlier commands count as reused, so that speed, times and costs are
        this command's.
        """
        self.step, self.writer = writer.task, writer.nonce
        if self.step == "score":
            self.step = "plan"
            again = bool(writer.flow_run) and writer.flow_run == self.flow_run
            self.earlier_rows, self.earlier_s = (self.scored_rows, self.steady_s) if again else (0, 0.0)
            self.reused_shards = min(self.reused_shards, self.done_shards) if again else self.done_shards
            self.reused_rows = self.counts.rows_in
            self.flow_run = writer.flow_run
            self.first_start = self.last_end = 0.0
            self.usage_before = self.usage_before if again else self.usage
            self.spent, self.failed_s, self.retries = NOTHING_SPENT, 0.0, 0

    def _plan(self, line: Planned) -> None:
        """The plan says how much there is and is done. Failures under an earlier plan count, too."""
        self.shards, self.rows, self.uncounted = line.shards, line.rows, line.uncounted
        self.done_shards, self.counts = line.done_shards, line.counts
        self._count()
        self.reused_shards, self.reused_rows = self.done_shards, self.counts.rows_in
        self.first_start = self.last_end = 0.0
        self.spent, self.failed_s, self.retries = NOTHING_SPENT, 0.0, 0

    def _receipt(self, line: Receipt) -> None:
        self.done_shards += 1
        self.counts += line
        self.ceilings = lowest([self.ceilings, line.ceilings])
        self._count()
        if line.adopted_from:
            self.reused_shards += 1
            self.reused_rows += line.rows_in
            return
        self.reused_rows += line.rows_reused
        if self.step in ("plan", "load"):
            self.step = "score"
        self.retries += line.retries
        self.usage = self.usage.plus(line.usage)
        self.spent = self.spent.plus(line.spent)
        started = line.started_at
        self.first_start = min(self.first_start or started, started)
        self.last_end = max(self.last_end, started + line.seconds)

    def _count(self) -> None:
        if self.uncounted:
            self.rows = max(self.rows, self.counts.rows_in)

    @property
    def counted(self) -> bool:
        """Whether `rows` has all rows of the run: from the beginning, or when every shard has been read."""
        return not self.uncounted or self.done_shards >= self.shards

    @property
    def scored_rows(self) -> int:
        """Rows that this command scored, each once, without reused ones."""
        return max(0, self.earlier_rows + self.counts.rows_in - self.reused_rows)

    @property
    def steady_s(self) -> float:
        """Seconds from the first shard's start to the last one's end, in each score step of this command."""
        return self.earlier_s + max(0.0, self.last_end - self.first_start)

    @property
    def rows_per_s(self) -> float:
        """Rows scored per second in steady state; 0 before there is a figure."""
        return self.scored_rows / self.steady_s if self.steady_s > 0 else 0.0

    @property
    def token_rates(self) -> TokenRates:
        """How fast a language model was asked by this command, in steady state."""
        usage, seconds = self.usage.since(self.usage_before), self.steady_s
        return TokenRates(
            _share(usage.prompts, seconds),
            _share(usage.prompt_tokens, seconds),
            _share(usage.output_tokens, seconds),
            _share(usage.answering_ms, usage.output_tokens),
        )

    def remaining_s(self, now: float | None = None) -> float | None:
        """Seconds until every row is scored at the present speed; None while unknown.

        If rows are not counted, shards are counted; all have about the same number of bytes.
        """
        if not self.rows_per_s:
            return None
        left = (self.rows - self.counts.rows_in) / self.rows_per_s
        if not self.counted:
            scored = max(1, self.done_shards - self.reused_shards)
            left = (self.shards - self.done_shards) * self.steady_s / scored
        return max(0.0, left - max(0.0, (now or time.time()) - self.last_end))
