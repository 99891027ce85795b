"""The logical times of a job's runs: which there are; and their texts in ids, records and names of folders, which sort.

A job that is due at most once a day has days: `2026-11-28`. A job that is due more often has instants: `2026-11-28T05`
or `2026-11-28T0530`, in UTC because local hours occur twice in autumn. Minutes that are 00 are left out, whatever other
instants there are, so that an instant has the same text after its schedule was changed.
"""

from __future__ import annotations

import datetime as dt
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim

from nightjar.inference.errors import JobError

_FORM = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:T([0-9]{2})([0-9]{2})?)?")
"""What looks like a logical time. Python would also take 2026-W47 and 20261119, but they are valid names of runs."""

_MINUTE, _HOUR, _DAY = dt.timedelta(minutes=1), dt.timedelta(hours=1), dt.timedelta(days=1)

_CHANGE = 3 * _HOUR
"""More than clocks are changed by at once."""

_NAMED = 4
"""The most instants of a day that a message names."""


def moment_of(time: str) -> dt.datetime:
    """The moment of an instant, or the beginning of a day, in UTC.

    Raises:
        ValueError: The text is neither.
    """
    found = _FORM.fullmatch(time)
    if found is None:
        raise ValueError(f"{time!r} is no logical time")
    year, month, day, hour, minute = (int(part or 0) for part in found.groups())
    return dt.datetime(year, month, day, hour, minute, tzinfo=dt.UTC)


def instant(moment: dt.datetime) -> str:
    """The text of a moment with time zone, cut to the minute."""
    return f"{moment.astimezone(dt.UTC):%Y-%m-%dT%H%M}".removesuffix("00")


def is_day(time: str) -> bool:
    """Whether a logical time is a day."""
    return "T" not in time


def parsed(text: str) -> str | None:
    """The logical time that somebody wrote, as this module writes it; None if the text is none."""
    with suppress(ValueError):
        moment = moment_of(text)
        if dt.MINYEAR < moment.year < dt.MAXYEAR:  # else there is no day before, or none after
            return text if is_day(text) else instant(moment)
    return None


def given_time(text: str, option: str) -> str:
    """The same of an option of a command.

    Raises:
        JobError: The text is none. Names the option.
    """
    if (found := parsed(text)) is None:
        day = "there is no such day" if is_day(text) else "there is no such time"
        raise JobError(f"{option} {text!r}: {day if _FORM.fullmatch(text) else 'write a date as 2026-11-19'}")
    return found


@dataclass(frozen=True)
class Days:
    """The times of a job that is due at most once a day: dates in its time zone. cron: default: every day."""

    cron: str = "0 0 * * *"
    timezone: str = "UTC"

    def of(self, moment: dt.datetime) -> str:
        """The logical time of a moment with time zone."""
        return moment.astimezone(ZoneInfo(self.timezone)).date().isoformat()

    def last(self, moment: dt.datetime, most: int) -> list[str]:
        """That of the moment, and the last ones before it at which a run was due, the newest first. most: how many."""
        today = self.of(moment)
        due = CronSim(self.cron, moment_of(today).replace(tzinfo=None), reverse=True)
        return [today, *(wall.date().isoformat() for wall in islice(due, most - 1))]

    def between(self, first: str, last: str) -> list[str]:
        """The logical times from first to last at which a run is due."""
        # Without a time zone, because a night that daylight saving shortens is still a night.
        start, end = (moment_of(each).replace(tzinfo=None) for each in (first, last))
        return [wall.date().isoformat() for wall in takewhile(lambda wall: wall < end + _DAY, walls(self.cron, start))]

    def check(self, time: str, option: str) -> None:
        """Check that a run can have this logical time. option: names it, for messages.

        Raises:
            JobError: It cannot.
        """
        if not is_day(time):
            raise JobError(
                f"{option} {time}: the job's runs are those of days, so write {time[:10]}; only a `schedule` that is "
                "due several times a day makes a run for each time"
            )


@dataclass(frozen=True)
class Instants:
    """The times of a job that is due several times a day: each time at which Prefect starts a run, in UTC.

    A local time that clocks skip is due as much later as they are put forward. One that occurs twice is due once, the
    first time. All methods are as those of `Days`.
    """

    cron: str
    timezone: str

    def of(self, moment: dt.datetime) -> str:
        """The newest instant at or before the moment."""
        return self.last(moment, 1)[0]

    def last(self, moment: dt.datetime, most: int) -> list[str]:
        # Prefect's moments are Pendulum's, which put a local time that occurs twice at the second one.
        moment, span = dt.datetime.fromtimestamp(moment.timestamp(), dt.UTC), _HOUR
        while len(found := self.due(moment - span, moment)) < most:
            span *= 8
        return [instant(each) for each in found[: -most - 1 : -1]]

    def between(self, first: str, last: str) -> list[str]:
        """first, last: instants, or days in UTC."""
        end = moment_of(last) + (_DAY - _MINUTE) * is_day(last)
        return [instant(each) for each in self.due(moment_of(first), end)]

    def check(self, time: str, option: str) -> None:
        due = self.between(time[:10], time[:10])
        if time in due:
            return
        shown = due if len(due) <= _NAMED else [*due[:2], "…", due[-1]]
        raise JobError(
            f"{option} {time}: no run is due then; the job's `schedule` {self.cron!r} ({self.timezone}) makes runs of "
            f"instants in UTC, of that day {', '.join(shown) or 'none'}"
        )

    def due(self, first: dt.datetime, last: dt.datetime) -> list[dt.datetime]:
        """The moments from first to last at which a run is due, in UTC and in order."""
        zone = ZoneInfo(self.timezone)
        start, end = (each.astimezone(zone).replace(tzinfo=None) for each in (first, last))
        # More on both sides, because where clocks change local times are not in the order of their moments.
        local = takewhile(lambda wall: wall <= end + _CHANGE, walls(self.cron, start - _CHANGE))
        found = {wall.replace(tzinfo=zone).astimezone(dt.UTC) for wall in local}
        return sorted(moment for moment in found if first <= moment <= last)


def times_of(cron: str, timezone: str) -> Days | Instants:
    """The times of a schedule: instants if it may be due more than once on a date."""
    fields = walls(cron, dt.datetime(2026, 1, 1))
    several = len(fields.minutes) * len(fields.hours) > 1
    return Instants(cron, timezone) if several else Days(cron, timezone)


def walls(cron: str, first: dt.datetime) -> CronSim:
    """The local times at which a cron expression is due, from the first one on; all without time zone."""
    return CronSim(cron, first - dt.timedelta(seconds=1))
