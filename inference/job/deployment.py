"""The sections `schedule` and `notify`: when a deployment of the job runs, and who is told how it ended."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import available_timezones

from cronsim import CronSim, CronSimError
from pydantic import BeforeValidator, Field, SecretStr, field_validator

from nightjar.inference.job.resources import TAKEN
from nightjar.inference.job.sections import Section, form
from nightjar.inference.messages import nearest

_READ_TWO_WAYS = {
    # To Prefect the first is every hour, every minute …, and of days of the week so is the second.
    r"(?i)(?<!\w)0*(\w+)-0*\1(?!\w)": "schedulers differ in what {} means, so write the one value alone",
    r"(?<![\w-])\w+/\w+": "schedulers differ in what {} means, so write a range before the /, as 0-30/10",
}
"""Parts of a cron expression by their pattern, and what to write instead."""


class Schedule(Section):
    """When a deployment of the job runs: five fields of cron, in a time zone; each time that is due has a run."""

    cron: str
    timezone: str = "UTC"

    @field_validator("cron")
    @classmethod
    def _five_fields(cls, value: str) -> str:
        fields = value.split()
        problem = "" if len(fields) == 5 else f"it has {len(fields)} fields"
        if not problem and re.search(r"[#?LW]", re.sub(r"(?i)[a-z]{3}", "", value)):
            problem = "L, W, # and ? are not known here"
        if not problem and fields[2] != "*" and fields[4] != "*":
            problem = "day of month and day of week cannot both be given: what that means differs between schedulers"
        for pattern, mended in _READ_TWO_WAYS.items():
            if found := re.search(pattern, value):
                problem = problem or mended.format(found[0])
        try:
            CronSim(value, dt.datetime(2026, 1, 1))
        except CronSimError as error:
            problem = problem or str(error)
        if problem:
            raise ValueError(
                f'{value!r} is no cron expression ({problem}); write five fields, as "0 2 * * *": minute, hour, day '
                "of month, month, day of week"
            )
        return value

    @field_validator("timezone")
    @classmethod
    def _zone(cls, value: str) -> str:
        if value not in available_timezones():
            raise ValueError(
                f"{value!r} is no time zone; write one as Europe/Berlin{nearest(value, available_timezones())}"
            )
        return value


Occasion = Literal["failed", "asks", "published"]
"""What may be told: that a night ended without a publication, that it asks a person, or that it is published."""


def is_address(text: str) -> bool:
    """Whether a text is the address of a webhook."""
    if not re.fullmatch(r"https?://[!-~]+", text):
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _secret(value: Any) -> Any:
    # The value is in no message: whoever has it may write to the channel.
    if not isinstance(value, str) or not (is_address(value) or TAKEN.fullmatch(value)):
        raise ValueError("must be an address as https://hooks.example.com/…, or ${NAME} for a variable that has it")
    return SecretStr(value)


class Notify(Section):
    """on: when a message is sent. webhook: the address that it is posted to, or `${NAME}` for the environment variable
    that has it, where the run's flow is.
    """

    on: Annotated[tuple[Occasion, ...], Field(min_length=1), form("a list of failed, asks, published")]
    webhook: Annotated[SecretStr, BeforeValidator(_secret)]

    def address(self, environment: Mapping[str, str]) -> str:
        """The webhook's address; '' if the environment does not have it."""
        given = self.webhook.get_secret_value()
        source = TAKEN.fullmatch(given)
        found = environment.get(source[1], "").strip() if source else given
        return found if is_address(found) else ""
