"""The sections `schedule` and `notify`: when a deployment of the job runs, and who is told how it ended."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from pydantic import BeforeValidator, Field, SecretStr, field_validator

from nightjar.inference.job.resources import TAKEN
from nightjar.inference.job.sections import Section, form
from nightjar.inference.messages import nearest


class Schedule(Section):
    """When a deployment of the job runs: five fields of cron, in a time zone."""

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
        times = 1
        try:
            parsed = CronSim(value, dt.datetime(2026, 1, 1))
            times = len(parsed.minutes) * len(parsed.hours)
        except CronSimError as error:
            problem = problem or str(error)
        if problem:
            raise ValueError(
                f'{value!r} is no cron expression ({problem}); write five fields, as "0 2 * * *": minute, hour, day '
                "of month, month, day of week"
            )
        if times > 1:
            raise ValueError(
                f"{value!r} is due {times:,} times a day, and a run scores a day: later ones find nothing to score; "
                'write one minute and one hour, as "0 2 * * *"'
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

    def fires(self, wall: dt.datetime) -> bool:
        """Whether the schedule is due at that minute of local time."""
        minute = wall.replace(second=0, microsecond=0)
        return bool(next(CronSim(self.cron, minute - dt.timedelta(minutes=1))) == minute)

    def date_of(self, moment: dt.datetime) -> dt.date:
        """The logical date of a moment (with time zone): the date in the schedule's own time zone."""
        zone, hour, utc = ZoneInfo(self.timezone), dt.timedelta(hours=1), moment.astimezone(dt.UTC)
        local, later = (each.astimezone(zone).replace(tzinfo=None) for each in (utc, utc + hour))
        # If clocks are put forward at midnight, a night that is due in the skipped hour runs an hour earlier.
        if later - local > hour and not self.fires(local) and self.fires(local + hour):
            local += hour
        return local.date()

    def dates(self, first: dt.date, last: dt.date) -> list[dt.date]:
        """The logical dates from first to last on which it fires, each once."""
        # Without a time zone, because a night that daylight saving shortens is still a night.
        times = CronSim(self.cron, dt.datetime.combine(first, dt.time()) - dt.timedelta(minutes=1))
        return list(takewhile(lambda date: date <= last, (time.date() for time in times)))


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
