"""How a run ended, as its ledger keeps it: what stopped it, where, and what the gates said."""

from __future__ import annotations

import datetime as dt
import os
import signal
import socket
from dataclasses import replace

import pytest

from nightjar.inference.errors import GateFailed, Held, Interrupted, JobError, RunFailed, Terminated
from nightjar.inference.ledger.endings import Ended, FailedGate, asks, done, of_error, stopped_by
from nightjar.inference.messages import MESSAGE_CHARS, clip
from nightjar.inference.validation.gates import GateResult, Offender


def ended(error: BaseException, *, publish: bool = True) -> Ended:
    """What the ledger keeps of it, without the moment, which is now."""
    found = of_error(error, "score", publish=publish)
    assert found is not None
    at = dt.datetime.fromisoformat(found.at)
    assert dt.timedelta(0) <= dt.datetime.now(dt.UTC) - at < dt.timedelta(minutes=1)
    assert (at.utcoffset(), at.microsecond) == (dt.timedelta(0), 0)
    return replace(found, at="")


HERE = f"process {os.getpid()} on {socket.gethostname()}"


@pytest.mark.parametrize(
    ("error", "outcome", "name", "message"),
    [
        (JobError("input.uri: no such file"), "rejected", "JobError", "input.uri: no such file"),
        (RunFailed("no more"), "failed", "RunFailed", "no more"),
        (ValueError(" odd "), "failed", "ValueError", "odd"),
        (Interrupted("stopped by its flow run"), "stopped", "Interrupted", "stopped by its flow run"),
        (Terminated(), "stopped", "Interrupted", "stopped by SIGTERM, {here}"),
        (KeyboardInterrupt(), "stopped", "Interrupted", "stopped by Ctrl-C (SIGINT), {here}"),
        (SystemExit(1), "stopped", "Interrupted", "stopped by SystemExit, {here}"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
@pytest.mark.parametrize("publish", [True, False])
def test_what_ended_a_run_is_kept_by_class_and_message(
    error: BaseException, outcome: str, name: str, message: str, publish: bool
) -> None:
    said = message.format(here=HERE)
    assert ended(error, publish=publish) == Ended(outcome, "score", "", name, said, (), publish)


def test_a_run_that_another_writer_goes_on_with_has_not_ended() -> None:
    assert of_error(Held("score of process 7"), "score") is None


@pytest.mark.parametrize(("number", "who"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Signalled")])
def test_an_exception_that_brings_its_signal_is_told_by_it(number: int, who: str) -> None:
    """As Prefect's does, which is not imported here."""

    class Signalled(BaseException):
        signal = number

    found = stopped_by(Signalled())
    assert type(found) is Interrupted
    assert str(found) == f"stopped by {who}, {HERE}"
    told = Interrupted("by somebody")
    assert stopped_by(told) is told


def test_the_gates_that_failed_are_kept_with_the_first_row_that_speaks_against_each() -> None:
    long = "x" * (MESSAGE_CHARS + 1)
    rows = (Offender("s1", "a.parquet", 3, "-1.5", "nightjar replay 3"), Offender("s2", "b.parquet", 4, "-2", "no"))
    gates = (
        GateResult("complete", True, "2 of 2", "all", "All are done."),
        GateResult("score.min", False, "-2", "0", long, rows),
        GateResult("rows.min", False, "1", "2", "Too few."),
        GateResult("score.max", False, "2", "1", "Too high.", (Offender("s3", long, 9, "2"),)),
    )
    found = ended(GateFailed(long, gates))
    assert (found.outcome, found.error, found.message) == ("failed", "GateFailed", clip(long))
    assert found.gates == (
        FailedGate("score.min", clip(long), "Row 3 of a.parquet (shard s1) holds -1.5", "nightjar replay 3"),
        FailedGate("rows.min", "Too few."),
        FailedGate("score.max", "Too high.", clip(f"Row 9 of {long} (shard s3) holds 2"), ""),
    )
    assert found.where == "gate score.min and 2 more"
    assert replace(found, gates=found.gates[:2]).where == "gate score.min and 1 more"
    assert replace(found, gates=found.gates[:1]).where == "gate score.min"
    assert replace(found, gates=()).where == "score"


@pytest.mark.parametrize(("limited", "outcome"), [(True, "limited"), (False, "validated")])
def test_a_run_that_is_not_to_be_published_ends_well(limited: bool, outcome: str) -> None:
    found = done("validate", limited=limited)
    assert dt.datetime.fromisoformat(found.at).utcoffset() == dt.timedelta(0)
    assert replace(found, at="") == Ended(outcome, "validate", "", publish=False)


def test_a_run_that_waits_for_an_answer_ends_with_what_asks_and_until_when() -> None:
    """As the error `Unanswered` would end it, since when it asked."""
    gates = (FailedGate("score.max", "Too high."), FailedGate("rows.min", "Too few."))
    found = asks("validate", gates, "2026-11-19T02:00:00+00:00", "2026-11-19T14:00:00+00:00")
    said = "No answer until 2026-11-19T14:00:00+00:00 counts as a no."
    assert found == Ended("asks", "validate", "2026-11-19T02:00:00+00:00", "Unanswered", said, gates)
    assert found.where == "gate score.max and 1 more"
    assert found.publish
