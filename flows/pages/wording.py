"""Texts from figures: how far a run is, how long something took, what a publication still lacks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from nightjar.flows.pages.escaping import line
from nightjar.inference.history.retention import Pruned
from nightjar.inference.history.run_status import Metric
from nightjar.inference.history.run_tables import Incident, ShardLine
from nightjar.inference.ledger.progress import Progress, TokenRates
from nightjar.inference.ledger.remarks import FEW_CUTS
from nightjar.inference.messages import counted
from nightjar.inference.output.outcomes import Reused
from nightjar.inference.output.targets import TableShown
from nightjar.inference.predictors.language.languagemodel import TokenPrices
from nightjar.inference.run.account import SCORE, Account, WorkersCost
from nightjar.inference.run.results import Publication
from nightjar.inference.validation.gates import Offender

_SOME = 5
"""The most values that are named in a cell or a line."""

_QUIET_S = 120.0
"""Seconds without a finished shard after which this is reported."""


def cells(record: ShardLine | Incident) -> dict[str, Any]:
    """The cells of a table for a record, by field. A value that is not known is an empty cell, of rows `unknown`."""
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    unknown = {name: "unknown" if name == "rows" else "" for name, value in values.items() if value is None}
    return {**values, **unknown}


def fact_lines(facts: Iterable[tuple[str, str]]) -> list[str]:
    """Facts as lines for the terminal: a column of words, and their texts. A fact without a text is left out."""
    return [f"  {line(word):<10} {line(text)}" for word, text in facts if text]


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


def language(progress: Progress, prices: TokenPrices | None) -> list[tuple[str, str]]:
    """What a language model was asked and answered, how fast, and what it cost, as (name, value); empty for others."""
    if not progress.usage.requests:
        return []
    found = [("tokens", _tokens(progress))]
    if rates := _token_rates(progress.token_rates):
        found.append(("rates", rates))
    if prices and _has_counts(progress):
        found.append(("cost", f"{money(prices.cost(progress.usage), prices.currency)}, by the prices in model.cost"))
    return found


def reused_text(found: Sequence[Reused], rows: int, currency: str) -> str:
    """The results that were taken over, and what that saved; empty if there are none. rows: of the night."""
    if not found:
        return ""
    names = ("rows", "rows_partly", "saved_s", "saved")
    taken, partly, saved_s, saved = (sum(getattr(each, name) for each in found) for name in names)
    some = f" and some outputs of {partly:,}" if partly else ""
    text = f"{taken:,} of {rows:,} rows{some} from {first_of([each.source.replace('/', ' ') for each in found])}"
    if not saved_s:
        return text
    return f"{text}; saved {duration(saved_s)} of workers{f', {money(saved, currency)}' if saved else ''}"


def machines_cost(spent: WorkersCost) -> str:
    """What the workers of a run cost, for people."""
    each = f", {money(spent.per_million_rows, spent.currency)} per million rows" if spent.per_million_rows else ""
    return f"{money(spent.amount, spent.currency)} for {duration(spent.worker_s)} of workers{each}"


def money(cost: float, currency: str) -> str:
    """A sum of money for people: 12.40 USD, 0.0031 USD."""
    amount = f"{cost:,.2f}" if cost >= 1 else f"{cost:.4f}"
    if 0 < cost < 0.0001:
        amount = "under 0.0001"
    return f"{amount} {currency}".rstrip()


def _has_counts(progress: Progress) -> bool:
    return progress.usage.prompt_tokens + progress.usage.output_tokens > 0


def _tokens(progress: Progress) -> str:
    used = progress.usage
    repeated = f" ({used.retries:,} repeated)" if used.retries else ""
    longest = [f"longest prompt {used.longest_prompt:,}"] if used.longest_prompt else []
    cached = [f"{used.found_in_cache:.0%} from the prefix cache"] if used.cached_tokens else []
    known = f" ({', '.join(cached + longest)})" if cached + longest else ""
    ends = {"stop": used.stopped, "length": used.cut, "other": used.ended_otherwise}
    ended = ", ".join(f"{count:,} {reason}" for reason, count in ends.items() if count)
    tokens = f"{used.prompt_tokens:,} in{known}, {used.output_tokens:,} out"
    told = tokens if _has_counts(progress) else "the endpoint counts no tokens"
    return f"{counted(used.requests, 'request')}{repeated}: {told}{f'; answers ended: {ended}' if ended else ''}"


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
    counts = progress.counts
    figures = (
        (progress.reused_shards, f"{progress.reused_shards:,} already done"),
        (progress.rows_per_s, f"{progress.rows_per_s:,.0f} rows/s"),
        (progress.failed_attempts, counted(progress.failed_attempts, "failed attempt")),
        (progress.retries, f"{counted(progress.retries, 'fault')} overcome in place"),
        (counts.batches_cut > FEW_CUTS, f"{counts.batches_cut:,} batches cut"),
        (counts.rows_quarantined, f"{counts.rows_quarantined:,} quarantined"),
        (counts.rows_partial, f"{counts.rows_partial:,} partly scored"),
    )
    parts = [text for figure, text in figures if figure]
    if running and progress.last_end and progress.done_shards < progress.shards:
        parts += _ahead(progress.remaining_s(), time.time() - progress.last_end)
    return parts


def _ahead(left: float | None, since: float) -> list[str]:
    """The time left; when it is used up, the time since the last shard was done, because others are retried or hang."""
    if left:
        return [f"about {duration(left) if left >= 10 else f'{max(1, left):.0f} s'} left"]
    return [f"no shard done for {duration(since)}"] if since >= _QUIET_S else []


def speed(progress: Progress) -> str:
    """How fast the last command scored: all its rows, from the start of the first shard to the end of the last."""
    rows = counted(progress.scored_rows, "row")
    return f"{progress.rows_per_s:,.0f} rows/s ({rows} in {duration(progress.steady_s)})"


def duration(seconds: float | None) -> str:
    """Seconds for people: 0.4 s, 12 s, 3 min, 2 h 05 min; empty if they are not known."""
    if seconds is None:
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


_TOLD, _LEAST_S = 0.03, 0.05
"""The least share of a whole that is told by its name, and the least seconds of all others together."""


def where_time_went(account: Account) -> str:
    """The parts of a run's wall time, the longest first, and what its workers did while they scored."""
    longest = sorted(account.parts.items(), key=lambda part: -part[1])
    told = [(name, seconds) for name, seconds in longest if seconds >= _TOLD * account.wall_s]
    said = [f"{name} {duration(seconds)}{_shares(account, name)}" for name, seconds in told]
    if (rest := account.wall_s - sum(seconds for _, seconds in told)) >= _LEAST_S:
        said.append(f"the rest {duration(rest)}")
    return ", ".join(said)


def _shares(account: Account, part: str) -> str:
    """What the workers did while they scored, in percent, the most first."""
    if part != SCORE or not account.scoring:
        return ""
    shares = {name: seconds / account.parts[part] for name, seconds in account.scoring.items()}
    told = sorted(((name, share) for name, share in shares.items() if share >= _TOLD), key=lambda each: -each[1])
    return f" ({', '.join(f'{share:.0%} {name}' for name, share in told)})"


def minute(at: str) -> str:
    """A time of a ledger, in UTC, to the minute."""
    return at[:16].replace("T", " ")


def named_instead(run_id: str) -> str:
    """That another run stands for the date of this one. run_id: its name."""
    return f"latest/, dates/ and tables show the run {run_id!r} for its date, not this run"


def late_table(table: TableShown, newest: int) -> str:
    """What a table does not show. newest: the number of the newest publication of the output."""
    if table.problem:
        return f"{table.uri}: {table.problem}"
    if table.lacks:
        return f"{table.uri} lacks {', '.join(table.lacks)}; `nightjar tables JOB` says why"
    return f"{table.uri} shows publication {table.publication}, not yet {newest}"


def unfinished(publication: Publication) -> list[str]:
    """Notes on what is left to do for a publication that readers see."""
    left = publication.unfinished
    untidy = f"published, but not tidied up after; run it again, nothing is scored then: {left}"
    return [*([untidy] if left else []), *([f"published, but {publication.behind}"] if publication.behind else [])]


def pruned(found: Pruned, *, would: bool = False) -> str:
    """What was deleted of old nights, in a sentence. would: nothing was, yet."""
    if not (found.hidden or found.runs or found.publications or found.files):
        return f"nothing to delete: the newest {counted(found.keep, 'night')} and what is new are kept"
    hidden = counted(len(found.hidden), "night")
    seen = f"readers {'would ' if would else ''}see {hidden} less, " if found.hidden else ""
    parts = (
        f"{counted(found.revisions, 'revision')} of {counted(len(found.runs), 'run')}",
        f"{counted(found.publications, 'publication')}",
        f"{counted(found.files, 'file')}",
    )
    return f"{seen}{', '.join(parts)}: {size(found.bytes)} {'would be ' if would else ''}deleted"


def size(number: int) -> str:
    """A number of bytes for people: 640 bytes, 1.5 MiB."""
    if number < 1024:
        return counted(number, "byte")
    power = min((number.bit_length() - 1) // 10, 4)
    return f"{number / 1024**power:,.1f} {' KMGT'[power]}iB"


def said_of(offender: Offender) -> str:
    """A row that a gate names: where it is, and its value."""
    row = f"row {offender.row} of {offender.file}" if offender.row >= 0 else offender.file
    return f"{row} (shard {offender.shard}): {offender.value}"


def metric_text(metric: Metric | None) -> str:
    """The figure by which nights are compared, with its revision if that is not the newest; empty if there is none."""
    if metric is None:
        return ""
    value = f"{metric.value:.4g}" if isinstance(metric.value, float) else metric.value
    return f"{metric.name} {value}{f' (r{metric.revision})' if metric.revision else ''}"


def first_of(values: Sequence[str]) -> str:
    """The first values, and how many more there are."""
    more = f" and {len(values) - _SOME:,} more" if len(values) > _SOME else ""
    return ", ".join(values[:_SOME]) + more
