"""Where the wall time of a run went: every second is in exactly one of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from nightjar.inference.errors import AlreadyExists, Missing
from nightjar.inference.job.model import Job
from nightjar.inference.jsonform import SELDOM, of_bytes, to_bytes
from nightjar.inference.output.revisions import Revision
from nightjar.inference.records import as_line
from nightjar.inference.run.results import Publication, Scored, Verdict
from nightjar.inference.storage.protocol import Storage, join, read_control
from nightjar.inference.usage import Spent

ACTORS, SCORE, AGAIN = "actors", "score", "again"
"""The parts in which workers start, and score. `Account.scoring` divides the second."""

VALIDATE, AUDIT, TASKS = "validate", "audit", "tasks"
_WHOLE = {"flow": TASKS, VALIDATE: AUDIT}
"""What the flow did → the part that it counts for, where no step says more of it."""

_FORM = "account-{epoch:08d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where the wall time of a night went, in seconds."""

    wall_s: float
    """How long the night took, on every page: from the start of the last command that scored it until its last step
    ended."""

    parts: Mapping[str, float]
    """What was done, in order → its seconds. `start`: the job is checked, Prefect and Ray start. `input`: the input is
    waited for. `discover`. `plan`. `load`: preflight loads the model. `actors`: in each pass, until the first shard is
    begun. `score`. `wait`: before failed shards are tried again. `close`: the score step ends. `again`: score steps
    before the last one, which failed, or whose parts an audit found damaged. `audit`. `rescore`. `gates`. `manifest`.
    `publish`. `tasks`: what Prefect takes around the steps."""

    workers: int = 0
    """The most workers that scored at once."""

    scoring: Mapping[str, float] = field(default_factory=dict)
    """The part `score`, divided by what the workers did: the seconds of all workers, divided by their number. The names
    are the fields of `Spent`; `failed`: attempts that failed; `idle`: without a shard, or lost. Empty if workers ask
    for the rows of several shards at once."""

    worker_s: float = field(default=0.0, metadata=SELDOM)
    """The seconds for which workers were held, all together."""


@dataclass(frozen=True, slots=True)
class WorkersCost:
    """What the workers of a command cost, by `cost` of the job."""

    amount: float
    """The cost of all workers, in `currency`."""

    per_million_rows: float | None
    """The cost of a million rows that this command scored, in `currency`; null if it scored none."""

    currency: str
    """The currency, as the job has it."""

    worker_s: float
    """The seconds for which the workers were held, all together."""


def account_of(
    flow: Mapping[str, float], scored: Scored, verdict: Verdict | None = None, publication: Publication | None = None
) -> Account:
    """Put the account of a run together. flow: what its flow did → seconds; the steps among it, as the flow saw them.

    A step that says itself what it did is divided by that. What the flow saw beyond it counts for `tasks`; of a step
    that was tried several times, for the tries before. A run that ends with its gates has no verdict, or is not
    published.
    """
    said: dict[str, tuple[Mapping[str, float], str]] = {SCORE: (scored.took, AGAIN if scored.tries > 1 else TASKS)}
    if verdict is not None:
        said[VALIDATE] = verdict.took, AUDIT if verdict.tries > 1 else TASKS
    if publication is not None:
        said["publish"] = {"publish": publication.seconds}, TASKS
    parts: dict[str, float] = {}
    for name, seconds in flow.items():
        took, beyond = said.get(name, ({_WHOLE.get(name, name): seconds}, TASKS))
        for what, within_s in (*took.items(), (beyond, seconds - sum(took.values()))):
            parts[what] = parts.get(what, 0.0) + within_s
    rounded = {name: round(seconds, 3) for name, seconds in parts.items() if round(seconds, 3)}
    held = sum(rounded.get(name, 0.0) for name in (ACTORS, SCORE, "wait", AGAIN))
    progress = scored.progress
    return Account(
        wall_s=round(sum(flow.values()), 3),
        parts=rounded,
        workers=scored.workers,
        scoring=_divided(rounded.get(SCORE, 0.0), scored.workers, progress.spent, progress.failed_s),
        worker_s=round(held * scored.workers, 3),
    )


def _divided(seconds: float, workers: int, spent: Spent, failed_s: float) -> dict[str, float]:
    """These seconds, by what the workers did. Empty if they do not say: their rows are asked for side by side."""
    if not workers or not spent.total:
        return {}
    each = {**as_line(spent), "failed": failed_s}
    found = {name: round(total / workers, 3) for name, total in each.items()}
    return {**found, "idle": round(seconds - sum(found.values()), 3)}


def workers_cost(job: Job, made: Account | None, rows: int) -> WorkersCost | None:
    """What the workers of a command cost; None if the job has no prices, or nothing was scored.

    rows: that it scored.
    """
    if job.cost is None or made is None or not made.worker_s:
        return None
    amount = job.cost.of(job.resources, made.worker_s)
    each = round(amount / rows * 1e6, 6) if rows else None
    return WorkersCost(round(amount, 6), each, job.cost.currency, made.worker_s)


def keep(storage: Storage, revision: str, epoch: int, made: Account) -> None:
    """Keep the account of the command that had this epoch, beside what it made."""
    with suppress(AlreadyExists):  # a create that was sent again
        storage.create(join(revision, _FORM.format(epoch=epoch)), to_bytes(made))


def kept(storage: Storage, newest: Revision) -> Account | None:
    """The account of the last command that scored a revision; None if it kept none, as it did not come to its end.

    Raises:
        StorageError: It cannot be read, or another version wrote it.
    """
    epochs = [epoch for epoch, writer in newest.state.openers if writer.task == "score"]
    if not epochs:
        return None
    file = join(newest.uri, _FORM.format(epoch=epochs[-1]))
    try:
        return read_control(storage, file, partial(of_bytes, Account), "an account", "delete it")
    except Missing:
        return None
