"""Prefect's logs of a run: our own errors become one sentence; unexpected errors keep their tracebacks."""

from __future__ import annotations

import logging

from nightjar.inference.errors import NightjarError

_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")


class _OneSentence(logging.Filter):
    """Logs the error in place of "exited with unexpected exception" and a traceback of Prefect's own frames."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, NightjarError):
            record.msg, record.args = f"{type(error).__name__}: {error}", ()
            record.exc_info, record.exc_text = None, None
        return True


_one_sentence = _OneSentence()


def expect_failures() -> None:
    """Install the filter. Each process that runs our flow or a task calls this first; a second call does nothing."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_one_sentence)
