"""How a run ended. The ledger keeps this, so that the reason can be found after the terminal is closed."""

from __future__ import annotations

import datetime as dt
import os
import signal
import socket
from dataclasses import dataclass, field
from typing import Any

from nightjar.inference.errors import GateFailed, Held, Interrupted, JobError, TakenBack, Terminated, Unanswered
from nightjar.inference.jsonform import SELDOM
from nightjar.inference.messages import clip

FAILED, REJECTED, STOPPED, ASKS = "failed", "rejected", "stopped", "asks"
BEFORE_IT_BEGINS = {"start", "discover"}
"""Steps at which a run has no ledger yet: Ray and Prefect start, and the input is listed."""

LIMITED, VALIDATED = "limited", "validated"


@dataclass(frozen=True, slots=True)
class FailedGate:
    """A gate that did not pass, and its sentence."""

    name: str
    """The name of the gate, as in `GateResult`."""

    sentence: str
    """What happened, and what to do next."""

    row: str = ""
    """The first row that the gate refuses, and its value; empty if the gate names none."""

    replay: str = ""
    """The command that scores the row again; empty without a row, and for a check on keys."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one flow run of a run ended without a publication."""

    outcome: str
    """`failed`; `rejected`: job, input or model must be changed; `stopped`, by a person or a signal; `asks`: a person
    must say yes before the run is published; `limited` or `validated`: done, and not to be published."""

    step: str
    """Where the run ended: start, discover, score, validate, publish or retire."""

    at: str
    """When the run ended, in UTC, as ISO 8601."""

    error: str = ""
    """The class of the exception; empty if the run was done."""

    message: str = ""
    """The message of the exception; empty if the run was done."""

    gates: tuple[FailedGate, ...] = ()
    """The gates that failed, or that ask."""

    publish: bool = True
    """Whether the run was to be published."""

    engine: str | None = field(default=None, metadata=SELDOM)
    """Where the run was to be scored, if the run ended before it had a ledger; else None."""

    taken_back: str = field(default="", metadata=SELDOM)
    """The run whose results a person took back, so that this one cannot go on with them; empty for none."""

    @property
    def where(self) -> str:
        """Where the run ended, for people: the gate, or the step."""
        if not self.gates:
            return self.step
        more = f" and {len(self.gates) - 1} more" if len(self.gates) > 1 else ""
        return f"gate {self.gates[0].name}{more}"

    @property
    def words(self) -> str:
        """How and where it ended, for people."""
        return f"{self.outcome} at {self.where}" if self.where else self.outcome


def of_error(error: BaseException, step: str, *, publish: bool = True, engine: str | None = None) -> Ended | None:
    """How an error ended a run; None if another writer continues the run."""
    if isinstance(error, Held):
        return None
    if not isinstance(error, Exception):
        error = stopped_by(error)
    gates = error.gates if isinstance(error, GateFailed) else ()
    wanted = "ask" if isinstance(error, Unanswered) else "block"
    failed = tuple(failed_gate(gate) for gate in gates if gate.verdict == wanted)
    outcomes = {Interrupted: STOPPED, JobError: REJECTED, Unanswered: ASKS}
    outcome = next((outcome for kind, outcome in outcomes.items() if isinstance(error, kind)), FAILED)
    source = error.run if isinstance(error, TakenBack) else ""
    return Ended(outcome, step, utc(), type(error).__name__, clip(str(error)), failed, publish, engine, source)


def failed_gate(gate: Any) -> FailedGate:
    """What is kept of a gate that did not pass. gate: a `gates.GateResult`."""
    first = gate.where[0] if gate.where else None
    row, replay = (clip(first.holds), first.replay) if first else ("", "")
    return FailedGate(gate.name, clip(gate.sentence), row, replay)


def stopped_by(error: BaseException) -> Interrupted:
    """Convert an interruption to an error that says who stopped this process."""
    if isinstance(error, Interrupted):
        return error
    number = getattr(error, "signal", None)  # Prefect's
    if isinstance(error, Terminated) or number == signal.SIGTERM:
        who = "SIGTERM"
    elif isinstance(error, KeyboardInterrupt):
        who = "Ctrl-C (SIGINT)"
    else:
        who = type(error).__name__
    return Interrupted(f"stopped by {who}, process {os.getpid()} on {socket.gethostname()}")


def done(step: str, *, limited: bool) -> Ended:
    """The ending of a run that is not to be published, when everything that was asked for is done."""
    return Ended(LIMITED if limited else VALIDATED, step, utc(), publish=False)


def asks(step: str, gates: tuple[FailedGate, ...], at: str, until: str) -> Ended:
    """The ending of a run that waits for a person's answer, with everything else done."""
    return Ended(ASKS, step, at, Unanswered.__name__, f"No answer until {until} counts as a no.", gates)


def utc(hours: float = 0.0) -> str:
    """This moment, or that many hours later, in UTC, as ISO 8601."""
    return (dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours)).isoformat(timespec="seconds")
