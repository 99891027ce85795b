"""Texts from figures: how far a run is, how long something took, what a publication still lacks."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from nightjar.inference.ledger.progress import Progress
from nightjar.inference.ledger.remarks import FEW_CUTS
from nightjar.inference.messages import counted

if TYPE_CHECKING:
    from nightjar.inference.ledger.tokenrates import TokenRates
    from nightjar.inference.metrics.figures import Evaluation, Figures
    from nightjar.inference.predictors.prices import Prices
    from nightjar.inference.run.report import Incident, ShardLine
    from nightjar.inference.run.standing import Metric
    from nightjar.inference.run.steps import Publication
    from nightjar.inference.validation.gates import Offender


_NOT_KNOWN = {"rows": "unknown"}
"""Field → the text of its cell if its value is not known; other cells are empty then."""

_QUIET_S = 120.0
"""Seconds without a finished shard after which this is reported."""


def cells(record: ShardLine | Incident) -> dict[str, Any]:
    """The cells of a table for a record, by field."""
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    return {name: _NOT_KNOWN.get(name, "") if value is None else value for name, value in values.items()}


def describe(progress: Progress, *, running: bool = False) -> str:
    """One line with shards, rows per second, retries and quarantined rows; if `running`, with the time left."""
    return ", ".join([shards_done(progress), *details(progress, running)])


def left_out(rows: int, where: str) -> str:
    """The rows that were read besides and are not scored."""
    return f"{counted(rows, 'more row')} read and left out: not ({where})"


def rows_known(rows: int, uncounted: int) -> str:
    """The rows of an input, of which `uncounted` files have rows that are not known before they are read."""
    if not uncounted:
        return f"{rows:,} rows"
    more = f"the rows of {counted(uncounted, 'file')} not known before they are read"
    return f"{rows:,} rows and {more}" if rows else more


def partly(progress: Progress) -> str:
    """The rows that only some of several models could score, for the middle of a line; '' if there are none."""
    return f"{progress.rows_partial:,} partly scored, " if progress.rows_partial else ""


def memory(progress: Progress) -> str:
    """What the workers take of memory; pages that several of them share are counted once in the sum."""
    largest = f"{progress.resident_mb:,} MB"
    if len(progress.memory) == 1:
        return largest
    return f"{largest} in the largest of {len(progress.memory):,} workers; {progress.proportional_mb:,} MB together"


def language(progress: Progress, prices: Prices | None) -> list[tuple[str, str]]:
    """What a language model was asked and answered, how fast, and what it cost, as (name, value); empty for others."""
    if not progress.usage.requests:
        return []
    found = [("tokens", _tokens(progress))]
    if rates := _token_rates(progress.token_rates):
        found.append(("rates", rates))
    if prices:
        found.append(("cost", f"{money(spent(progress, prices), prices.currency)}, {prices.said}"))
    return found


def spent(progress: Progress, prices: Prices) -> float:
    """What a run cost by these prices."""
    return prices.cost(progress.usage, len(progress.memory), progress.steady_s)


def money(cost: float, currency: str) -> str:
    """A sum of money for people: 12.40 USD, 0.0031 USD."""
    amount = f"{cost:,.2f}" if cost >= 1 else f"{cost:.4f}"
    if 0 < cost < 0.0001:
        amount = "under 0.0001"
    return f"{amount} {currency}".rstrip()


def _tokens(progress: Progress) -> str:
    used = progress.usage
    repeated = f" ({used.retries:,} repeated)" if used.retries else ""
    longest = [f"longest prompt {used.longest_prompt:,}"] if used.longest_prompt else []
    cached = [f"{used.found_in_cache:.0%} from the prefix cache"] if used.cached_tokens else []
    known = f" ({', '.join(cached + longest)})" if cached + longest else ""
    ends = {"stop": used.stopped, "length": used.cut, "other": used.ended_otherwise}
    ended = ", ".join(f"{count:,} {reason}" for reason, count in ends.items() if count)
    return (
        f"{counted(used.requests, 'request')}{repeated}: {used.prompt_tokens:,} in{known}, {used.output_tokens:,} out"
        f"{f'; answers ended: {ended}' if ended else ''}"
    )


def _token_rates(rates: TokenRates) -> str:
    """How fast a language model was asked; '' if nothing was."""
    if not rates.prompts_per_s:
        return ""
    parts = [f"{rates.prompts_per_s:,.1f} prompts/s", f"{rates.input_tokens_per_s:,.0f} input tokens/s"]
    if rates.output_tokens_per_s:
        each = f"{rates.ms_per_output_token:,.1f} ms per output token in a request"
        parts += [f"{rates.output_tokens_per_s:,.0f} output tokens/s", each]
    return ", ".join(parts)


def shards_done(progress: Progress) -> str:
    """3/24 shards."""
    return f"{progress.done_shards:,}/{progress.shards:,} shards"


def details(progress: Progress, running: bool) -> list[str]:
    """Further texts about a run's progress, one for each figure."""
    parts = []
    if progress.reused_shards:
        parts.append(f"{progress.reused_shards:,} already done")
    if progress.rows_per_s:
        parts.append(f"{progress.rows_per_s:,.0f} rows/s")
    if progress.failed_attempts:
        parts.append(counted(progress.failed_attempts, "failed attempt"))
    if progress.retries:
        parts.append(f"{counted(progress.retries, 'fault')} overcome in place")
    if progress.cuts > FEW_CUTS:
        parts.append(f"{progress.cuts:,} batches cut")
    if progress.rows_quarantined:
        parts.append(f"{progress.rows_quarantined:,} quarantined")
    if progress.rows_partial:
        parts.append(f"{progress.rows_partial:,} partly scored")
    if running and progress.last_end and progress.done_shards < progress.shards:
        parts += _ahead(progress.remaining_s(), time.time() - progress.last_end)
    return parts


def _ahead(left: float | None, since: float) -> list[str]:
    """The time left; when it is used up, the time since the last shard was done, because others are retried or hang."""
    if left:
        return [f"about {duration(left) if left >= 10 else f'{max(1, left):.0f} s'} left"]
    return [f"no shard done for {duration(since)}"] if since >= _QUIET_S else []


def duration(seconds: float) -> str:
    """Seconds for people: 0.4 s, 12 s, 3 min, 2 h 05 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def took(seconds: float | None) -> str:
    """How long a run took, by its ledger, which has whole seconds; empty if it is not known."""
    if seconds is None:
        return ""
    if seconds < 1:
        return "under 1 s"
    return duration(seconds) if seconds >= 10 else f"{seconds:.0f} s"


def notes(publication: Publication) -> list[str]:
    """Notes on what is left to do for a publication that readers see."""
    left = publication.unfinished
    untidy = f"published, but not tidied up after; run it again, nothing is scored then: {left}"
    return [*([untidy] if left else []), *([f"published, but {publication.behind}"] if publication.behind else [])]


def said_of(offender: Offender) -> str:
    """A row that a gate names: where it is, and its value."""
    row = f"row {offender.row} of {offender.file}" if offender.row >= 0 else offender.file
    return f"{row} (shard {offender.shard}): {offender.value}"


def _calibrated(found: Evaluation) -> str:
    return f", calibration error (ECE) {found.ece.value:.4f}" if found.ece else ""


def evaluation_lines(metrics: Figures) -> list[tuple[str, str]]:
    """The evaluation as (name, value), empty without a label."""
    found = metrics.evaluation
    if found is None:
        return []
    lines = []
    if found.auc_roc is not None:
        lines.append(("AUC-ROC", f"{found.auc_roc:.4f} ± {found.auc_bound:.4f} over {found.rows:,} rows"))
    if (precision := found.average_precision) is not None:
        share = f"{found.positives / found.rows:.1%} of the rows have label 1"
        lines.append(("AUC-PR", f"{precision.value:.4f} ± {precision.bound:.4f}; {share}"))
    if found.log_loss is not None:
        brier = f", Brier score {found.brier.value:.4f}" if found.brier else ""
        lines.append(("log loss", f"{found.log_loss:.4f}{brier}{_calibrated(found)}"))
    if (at := found.predictions) is not None:
        shares = (("accuracy", at.accuracy), ("precision", at.precision), ("recall", at.recall), ("F1", at.f1))
        said = ", ".join(f"{name} {share:.4f}" for name, share in shares if share is not None)
        lines.append((f"at {at.threshold:g}", said))
    return lines


def metric_text(metric: Metric | None) -> str:
    """The figure by which nights are compared; empty if there is none."""
    if metric is None:
        return ""
    return f"{metric.name} {metric.value:.4g}" if isinstance(metric.value, float) else f"{metric.name} {metric.value}"
