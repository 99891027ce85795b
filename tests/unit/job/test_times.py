"""The logical times of runs: days and instants, as text, in locations, and as a schedule has them."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from prefect.server.schemas.schedules import CronSchedule
from test_job import load

from nightjar.inference.errors import JobError
from nightjar.inference.job.locations import fill
from nightjar.inference.job.times import Days, Instants, instant, moment_of, parsed, times_of

BERLIN = "Europe/Berlin"
SPRING, AUTUMN = "2026-03-29", "2026-10-25"
"""The days on which clocks change in Berlin: at 01:00 UTC local time becomes 03:00, and later 02:00 again."""


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def instants(cron: str, day: str, zone: str = BERLIN) -> list[str]:
    """The hours and minutes of the instants of a day in UTC."""
    found = times_of(cron, zone).between(day, day)
    assert all(time.startswith(f"{day}T") for time in found)
    return [time.removeprefix(f"{day}T") for time in found]


# ---- text ---------------------------------------------------------------------------------------------------


def test_texts_sort_as_their_moments_do() -> None:
    """Also among the days that the job had before its schedule became finer."""
    times = ["2026-11-27", "2026-11-28", "2026-11-28T00", "2026-11-28T0030", "2026-11-28T05", "2026-11-28T0530"]
    times += ["2026-11-28T10", "2026-11-28T1005", "2026-11-29", "2026-11-29T00"]
    assert sorted(times) == times
    moments = [moment_of(time) for time in times]
    assert sorted(moments) == moments


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-28", "2026-11-28"),
        ("2026-11-28T05", "2026-11-28T05"),
        ("2026-11-28T0530", "2026-11-28T0530"),
        ("2026-11-28T0500", "2026-11-28T05"),
        ("2026-11-28T0000", "2026-11-28T00"),
        ("2026-02-30", None),
        ("9999-12-31T05", None),
        ("0001-01-01", None),
        ("2026-11-28T24", None),
        ("2026-11-28T0560", None),
        ("2026-11-28T5", None),
        ("2026-11-28T05:30", None),
        ("2026-11-28 05", None),
        ("2026-W47", None),
        ("20261128", None),
        ("", None),
    ],
)
def test_an_instant_has_one_text(text: str, time: str | None) -> None:
    assert parsed(text) == time
    if time and "T" in time:
        assert instant(moment_of(text)) == time


def test_the_text_of_a_moment_is_in_utc() -> None:
    assert instant(at("2026-11-28T06:30:59+01:00")) == "2026-11-28T0530"
    assert instant(at("2026-11-28T00:00:00+01:00")) == "2026-11-27T23"


def test_a_location_has_the_day_and_by_a_format_the_hour() -> None:
    assert fill("in/{date}/{date:%H}/{{x}}", "2026-11-28T05") == "in/2026-11-28/05/{x}"
    assert fill("in/{date:%Y/%m/%d/%H%M}/", "2026-11-28T0530") == "in/2026/11/28/0530/"


@pytest.mark.parametrize("form", ["", *(f"%{letter}" for letter in "aAbBcdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZf%")])
def test_a_day_in_a_location_is_as_pythons_date_writes_it(form: str) -> None:
    """Byte for byte what it was before there were instants."""
    field = f"{{date:{form}}}" if form else "{date}"
    for day in ("2026-11-28", "2024-02-29", "2026-01-01"):
        assert fill(f"x{field}x", day) == f"x{field}x".format(date=dt.date.fromisoformat(day))


# ---- days ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "date"),
    [
        ("2026-11-20T06:59:59+00:00", "2026-11-19"),  # a second before midnight in Denver
        ("2026-11-20T07:00:00+00:00", "2026-11-20"),
        ("2026-03-08T09:00:00+00:00", "2026-03-08"),  # 2:00 that morning, which the clocks skip
        ("2026-11-01T05:59:00+00:00", "2026-10-31"),  # still daylight saving: 23:59
        ("2026-11-02T06:30:00+00:00", "2026-11-01"),  # standard time: 23:30
    ],
)
def test_logical_date_is_the_date_in_the_schedules_time_zone(tmp_path: Path, moment: str, date: str) -> None:
    job = load(tmp_path, schedule={"cron": "0 2 * * *", "timezone": "America/Denver"})
    assert job.times.of(at(moment)) == date


def test_without_a_schedule_the_logical_date_is_utc(tmp_path: Path) -> None:
    times = load(tmp_path).times
    assert times.of(at("2026-11-20T01:00:00+02:00")) == "2026-11-19"
    assert times.between("2026-11-29", "2026-12-01") == ["2026-11-29", "2026-11-30", "2026-12-01"]
    assert times.last(at("2026-03-01T12:00:00+00:00"), 3) == ["2026-03-01", "2026-02-28", "2026-02-27"]


def test_the_last_nights_are_those_of_the_schedule_after_the_day_itself() -> None:
    """Something may have been run on a day on which nothing is due."""
    monthly = times_of("0 2 20 * *", BERLIN)
    assert monthly.last(at("2026-12-01T12:00:00+00:00"), 3) == ["2026-12-01", "2026-11-20", "2026-10-20"]
    assert monthly.last(at("2026-11-20T12:00:00+00:00"), 2) == ["2026-11-20", "2026-10-20"]
    assert times_of("0 0 * * MON", "UTC").last(at("2026-11-24T00:00:00+00:00"), 2) == ["2026-11-24", "2026-11-23"]
    assert times_of("0 2 29 2 *", BERLIN).last(at("2026-11-24T00:00:00+00:00"), 2) == ["2026-11-24", "2024-02-29"]


def test_schedule_tells_its_nights() -> None:
    def dates(cron: str, first: str, last: str) -> list[str]:
        return times_of(cron, BERLIN).between(first, last)

    # Through the night of 2026-03-29, when 2:30 does not exist, and 10-25, when it exists twice.
    assert dates("30 2 * * *", "2026-03-28", "2026-03-30") == ["2026-03-28", "2026-03-29", "2026-03-30"]
    assert dates("30 2 * * *", "2026-10-24", "2026-10-26") == ["2026-10-24", "2026-10-25", "2026-10-26"]
    assert dates("0 0 * * MON", "2026-11-16", "2026-11-29") == ["2026-11-16", "2026-11-23"]
    assert dates("0 2 29 2 *", "2026-01-01", "2026-12-31") == []


@pytest.mark.parametrize(
    ("cron", "zone", "days"),
    [
        # 00:00 of 24 April does not exist in Cairo: clocks go from 23:59 to 01:00.
        ("0 0 * * *", "Africa/Cairo", ["2026-04-23", "2026-04-24", "2026-04-25"]),
        ("30 0 * * *", "Africa/Cairo", ["2026-04-23", "2026-04-24", "2026-04-25"]),
        ("30 23 * * *", "Africa/Cairo", ["2026-04-21", "2026-04-22", "2026-04-23", "2026-04-24"]),
        ("30 2 * * *", BERLIN, ["2026-03-29", "2026-03-30", "2026-03-31"]),
    ],
)
def test_the_night_that_daylight_saving_begins_with_is_a_night(cron: str, zone: str, days: list[str]) -> None:
    """Of each run that Prefect starts then, also where clocks are put forward at midnight."""
    start = at(days[0]).replace(tzinfo=ZoneInfo(zone)) - dt.timedelta(seconds=1)
    fired = asyncio.run(CronSchedule(cron=cron, timezone=zone).get_dates(n=len(days), start=start))
    assert [times_of(cron, zone).of(each) for each in fired] == days


# ---- instants -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "kind"),
    [
        ("0 2 * * *", Days),
        ("30 2 1 * *", Days),
        ("0 2 * * MON", Days),
        ("0 * * * *", Instants),
        ("0,30 2 * * *", Instants),
        ("*/5 2 1 1 *", Instants),
        ("0 6,18 * * MON-FRI", Instants),
    ],
)
def test_a_job_has_instants_if_it_may_be_due_more_than_once_on_a_date(cron: str, kind: type) -> None:
    assert type(times_of(cron, "UTC")) is kind


def test_the_hours_of_the_days_on_which_clocks_change() -> None:
    """In spring 02:00 and 03:00 are one moment. In autumn 02:00 counts the first time."""
    hours = [f"{hour:02d}" for hour in range(24)]
    assert instants("0 * * * *", SPRING) == hours
    assert instants("0 * * * *", AUTUMN) == [hour for hour in hours if hour != "01"]
    assert instants("0 * * * *", AUTUMN, "UTC") == hours


def test_the_half_hours_of_the_days_on_which_clocks_change() -> None:
    halves = [f"{hour:02d}{minute}" for hour in range(24) for minute in ("", "30")]
    assert instants("*/30 * * * *", SPRING) == halves
    assert instants("*/30 * * * *", AUTUMN) == [half for half in halves if half[:2] != "01"]
    assert instants("0 * * * *", "2026-11-28", "Asia/Kolkata") == [f"{hour:02d}30" for hour in range(24)]


def test_morning_and_evening_keep_their_local_hours() -> None:
    cron = "0 6,18 * * *"
    found = times_of(cron, BERLIN).between("2026-03-28", "2026-03-29")
    assert found == ["2026-03-28T05", "2026-03-28T17", "2026-03-29T04", "2026-03-29T16"]
    found = times_of(cron, BERLIN).between("2026-10-24T16", "2026-10-25T05")
    assert found == ["2026-10-24T16", "2026-10-25T05"]


@pytest.mark.parametrize(
    ("cron", "moment", "time"),
    [
        ("0 * * * *", "2026-11-28T05:00:00+00:00", "2026-11-28T05"),
        ("0 * * * *", "2026-11-28T05:59:59+00:00", "2026-11-28T05"),
        ("*/30 * * * *", "2026-11-28T06:44:00+01:00", "2026-11-28T0530"),
        ("0 6,18 * * *", "2026-11-28T04:59:00+00:00", "2026-11-27T17"),
        ("0 6,18 * * MON", "2026-11-28T12:00:00+00:00", "2026-11-23T17"),
        ("0 6,18 29 2 *", "2026-11-28T12:00:00+00:00", "2024-02-29T17"),
        ("0 * * * *", "2026-10-25T00:30:00+00:00", "2026-10-25T00"),
        ("0 * * * *", "2026-10-25T01:30:00+00:00", "2026-10-25T00"),  # the second 02:30, in which nothing is due
        ("0 * * * *", "2026-10-25T02:00:00+00:00", "2026-10-25T02"),
        ("20,31 2 * * *", "2026-03-29T01:20:00+00:00", "2026-03-29T0120"),  # 02:20, as 03:20
    ],
)
def test_a_moment_is_of_the_newest_instant_at_or_before_it(cron: str, moment: str, time: str) -> None:
    assert times_of(cron, BERLIN).of(at(moment)) == time


def test_the_last_instants_come_newest_first() -> None:
    found = times_of("0 6,18 * * *", BERLIN).last(at("2026-11-28T12:00:00+00:00"), 3)
    assert found == ["2026-11-28T05", "2026-11-27T17", "2026-11-27T05"]


ZONES = (BERLIN, "America/New_York", "America/Santiago", "Africa/Cairo", "Australia/Lord_Howe", "Asia/Kolkata", "UTC")
CRONS = ("0 * * * *", "*/30 * * * *", "0 6,18 * * *", "15,45 0-3 * * *", "20,31 2 * * *", "10,40 1-2 * * SUN")


def changes_of(zone: str) -> list[dt.datetime]:
    """The beginnings of the days of 2026, in UTC, after which clocks change; a usual day where they never do."""
    days = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(day) for day in range(365)]
    offsets = [day.astimezone(ZoneInfo(zone)).utcoffset() for day in days]
    return [day for day, now, then in zip(days, offsets, offsets[1:], strict=False) if now != then] or [days[100]]


@pytest.mark.parametrize("cron", CRONS)
@pytest.mark.parametrize("zone", ZONES)
def test_the_instants_are_those_at_which_prefect_starts_runs(zone: str, cron: str) -> None:
    """Wherever its scheduler begins to look, and each with a name of its own."""
    times, prefect = times_of(cron, zone), CronSchedule(cron=cron, timezone=zone)
    assert isinstance(times, Instants)
    for change in changes_of(zone):
        end = change + dt.timedelta(days=2)
        for hours in (-24, 0, 3, 6.25, 12.75, 24):
            start = change + dt.timedelta(hours=hours)
            fired = asyncio.run(prefect.get_dates(start=start, end=end))
            assert times.due(start, end) == [moment.astimezone(dt.UTC) for moment in fired]
            names = [times.of(moment) for moment in fired]
            assert names == [instant(moment) for moment in fired] == sorted(set(names))


@pytest.mark.parametrize(
    ("times", "time", "said"),
    [
        (Days(), "2026-11-28T05", r"the job's runs are those of days, so write 2026-11-28; only a `schedule` that"),
        (times_of("0 * * * *", "UTC"), "2026-11-28", r"`schedule` '0 \* \* \* \*' \(UTC\)"),
        (times_of("0 * * * *", "UTC"), "2026-11-28", r"of that day 2026-11-28T00, 2026-11-28T01, …, 2026-11-28T23$"),
        (times_of("0 6,18 * * *", BERLIN), "2026-11-28T06", r"of that day 2026-11-28T05, 2026-11-28T17$"),
        (times_of("0 6,18 * * MON", BERLIN), "2026-11-28", r"of that day none$"),
    ],
)
def test_a_time_that_no_run_can_have_is_told_with_those_that_can_be(
    times: Days | Instants, time: str, said: str
) -> None:
    with pytest.raises(JobError, match=rf"^--date {time}: .*{said}"):
        times.check(time, "--date")
