"""On Prefect's page a failure on purpose is a sentence; a traceback there means that nobody expected it."""

from __future__ import annotations

import logging
import pickle

import pytest

from nightjar.flows.prefect_api.server import expect_failures
from nightjar.inference.errors import GateFailed


@pytest.mark.parametrize("logger", ["prefect.flow_runs", "prefect.task_runs", "prefect.engine"])
def test_a_failed_gate_is_logged_as_its_sentence(logger: str, caplog: pytest.LogCaptureFixture) -> None:
    """However often the process was told, and as a task's error comes out of Ray."""
    for _ in range(2):
        expect_failures()
    log = logging.getLogger(logger)
    log.addHandler(caplog.handler)
    try:
        raise pickle.loads(pickle.dumps(GateFailed("'score' is null in 3 rows.")))
    except GateFailed:
        log.error("Engine execution exited with unexpected exception", exc_info=True)
    log.removeHandler(caplog.handler)
    assert caplog.messages[-1:] == ["GateFailed: 'score' is null in 3 rows."]
    assert "Traceback" not in caplog.text


def test_what_nobody_expected_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    expect_failures()
    log = logging.getLogger("prefect.flow_runs")
    log.addHandler(caplog.handler)
    try:
        raise LookupError("a mistake of ours")
    except LookupError:
        log.error("Engine execution exited with unexpected exception", exc_info=True)
    log.removeHandler(caplog.handler)
    assert "Traceback" in caplog.text
    assert "LookupError: a mistake of ours" in caplog.text
