"""Prefect's logs: none on the terminal, and in the run's log our own errors are one sentence, without a traceback."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nightjar.inference.errors import NightjarError


def quiet() -> None:
    """Keep Prefect's logs off the terminal. They go to its API, and the run's page shows them."""
    logging.raiseExceptions = False  # logs that cannot be sent to the API are not printed either
    for handler in _terminals():
        handler.setLevel(logging.CRITICAL + 1)


@contextmanager
def as_found() -> Iterator[None]:
    """Undo `quiet` at the end, for a program that goes on after the run: flows of its own print as before."""
    raises, levels = logging.raiseExceptions, {handler: handler.level for handler in _terminals()}
    try:
        yield
    finally:
        logging.raiseExceptions = raises
        for handler in _terminals():  # a run makes them anew
            handler.setLevel(levels.get(handler, logging.NOTSET))


def _terminals() -> set[logging.StreamHandler[Any]]:
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    return {
        handler
        for logger in loggers
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and type(handler).__module__.startswith("prefect.")
    }


_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")


def _one_sentence(record: logging.LogRecord) -> bool:
    """Log our error in place of "exited with unexpected exception" and a traceback of Prefect's own frames."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, NightjarError):
        record.msg, record.args = f"{type(error).__name__}: {error}", ()
        record.exc_info, record.exc_text = None, None
    return True


def expect_failures() -> None:
    """Install the filter. Each process that runs our flow or a task calls this first; a second call does nothing."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_one_sentence)
