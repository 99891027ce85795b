"""How a run ended, as its ledger keeps it: a reason is there when the terminal is closed."""

from __future__ import annotations

import datetime as dt
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from nightjar.inference.errors import (
    GateFailed,
    Held,
    Interrupted,
    JobError,
    Terminated,
)
from nightjar.inference.messages import clip
from nightjar.inference.records import known

FAILED, REJECTED, STOPPED = "failed", "rejected", "stopped"
BEFORE_IT_BEGINS = {"start", "discover"}
"""Where a run ends that has no ledger yet: Ray and Prefect start, the input is looked for."""

LIMITED, VALIDATED = "limited", "validated"


@dataclass(frozen=True, slots=True)
class FailedGate:
    """A gate that said no, and its sentence. row, replay: one that speaks against it, and how to score it again."""

    name: str
    sentence: str
    row: str = ""
    replay: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How one flow run of a run ended without a publication.

    outcome: `failed`; `rejected`: job, input or model must be changed; `stopped`, by a person or a signal; `limited` or
    `validated`: done, and not to be published.
    step: where it ended: start, discover, score, validate or publish. error: the class of the exception, empty of what
    is done. gates: those that failed. publish: whether the run was to be published. at: UTC, as ISO 8601.
    """

    outcome: str
    step: str
    at: str
    error: str = ""
    message: str = ""
    gates: tuple[FailedGate, ...] = ()
    publish: bool = True

    @property
    def where(self) -> str:
        """Where it ended, for a person: the gate, or the step."""
        if not self.gates:
            return self.step
        more = f" and {len(self.gates) - 1} more" if len(self.gates) > 1 else ""
        return f"gate {self.gates[0].name}{more}"

    def as_record(self) -> dict[str, Any]:
        """As the ledger keeps it."""
        return {"t": "ended", **asdict(self)}


def of_record(record: Mapping[str, Any]) -> Ended:
    """The inverse of `as_record`. Unknown keys of a newer version are ignored."""
    gates = tuple(known(FailedGate, gate) for gate in record.get("gates", ()))
    return replace(known(Ended, record), gates=gates)


def of_error(error: BaseException, step: str, *, publish: bool = True) -> Ended | None:
    """What ended a run; None of one that another writer goes on with."""
    if isinstance(error, Held):
        return None
    if isinstance(error, Interrupted):
        return Ended(STOPPED, step, _now(), type(error).__name__, str(error), (), publish)
    if not isinstance(error, Exception):
        return Ended(STOPPED, step, _now(), Interrupted.__name__, str(stopped_by(error)), (), publish)
    gates = error.gates if isinstance(error, GateFailed) else ()
    failed = tuple(_failed(gate) for gate in gates if not gate.passed)
    outcome = REJECTED if isinstance(error, JobError) else FAILED
    return Ended(outcome, step, _now(), type(error).__name__, clip(str(error)), failed, publish)


def _failed(gate: Any) -> FailedGate:
    first = gate.where[0] if gate.where else None
    row, replay = (clip(first.holds), first.replay) if first else ("", "")
    return FailedGate(gate.name, clip(gate.sentence), row, replay)


def stopped_by(error: BaseException) -> Interrupted:
    """Who stopped this process: an interruption as an error that can be told and kept."""
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
    """The end of a run that is not to be published: everything that was asked for is done."""
    return Ended(LIMITED if limited else VALIDATED, step, _now(), publish=False)


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
