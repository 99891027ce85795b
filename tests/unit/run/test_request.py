"""Which run is meant: by its date, by its name, continued by whoever."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest

from nightjar.inference.errors import JobError
from nightjar.inference.run.refusals import check_request, check_without_input
from nightjar.inference.run.request import fixed, make_request, record_run
from nightjar.inference.run.scoring import discover
from nightjar.inference.storage.lake import LakeStorage
from support import Lake

LIMITED = "2026-11-19-limit-1000"


@pytest.mark.parametrize("output", ["out/", "out/{date}/"])
def test_a_limited_run_stays_limited_whoever_continues_it(lake: Lake, output: str) -> None:
    """By its name alone, also where the output's place has the date, and on another day."""
    lake.ready(output__uri=output)
    begun = lake.request(limit=1000)
    assert begun.run_id == LIMITED
    record_run(begun)
    continued = lake.request(run_id=LIMITED, date=None)
    assert (continued.limit, continued.publish, continued.run_uri) == (1000, False, begun.run_uri)


def test_a_limited_run_is_not_continued_as_a_whole_one(lake: Lake) -> None:
    """Where its record lies cannot be known before its date: once it is, the run is refused, not published."""
    lake.ready(output__uri="out/{date}/")
    today = lake.request(date=None).date
    record_run(lake.request(run_id="taste", date=today, limit=1000))
    with pytest.raises(JobError, match="that run began with --limit 1000, and such a run is never published"):
        check_request(lake.request(run_id="taste", date=None))
    check_request(lake.request(run_id="taste", date=None, limit=1000))


def test_the_columns_the_model_sees_are_part_of_every_shard(lake: Lake) -> None:
    """Without a list of features they follow from the files: when most get another column, all is scored again."""
    lake.write_file("part-00.parquet", 0, 1000)
    lake.write_model()
    lake.write_job(model__features=None)
    (before,) = lake.planned().ids()
    for index in (1, 2):
        path = lake.write_file(f"part-0{index}.parquet", index * 1000, 1000)
        table = pq.read_table(path)
        pq.write_table(table.append_column("y", table["x"]), path)
    assert before not in lake.planned().ids()
    lake.write_job(model__features=["x"])
    listed = set(lake.planned().ids())
    for path in (lake.folder / "data").iterdir():
        if path.name != "part-00.parquet":
            path.unlink()
    assert set(lake.planned().ids()) < listed


def test_a_date_that_is_no_day_is_told_from_one_in_another_form(lake: Lake) -> None:
    lake.ready()
    for date, said in {"2026-02-30": "there is no such day", "30.02.2026": "write a date as 2026-11-19"}.items():
        with pytest.raises(JobError, match=f"^--date '{date}': {said}$"):
            lake.request(date=date)


@pytest.mark.parametrize(
    "named",
    [
        {"model__features": ["x"]},
        {"model__features": None},
        {"carry": ["x"]},
        {"label": "x"},
        {"input__where": "x > 1"},
    ],
    ids=lambda named: next(iter(named)),
)
def test_a_column_that_the_files_have_twice_is_told_if_the_job_uses_it(lake: Lake, named: dict[str, Any]) -> None:
    path = lake.write_file("part-00.parquet", 0, 10)
    table = pq.read_table(path)
    pq.write_table(table.append_column("x", table["x"]).append_column("y", table["x"]), path)
    lake.write_model()
    lake.write_job(**{"model__features": ["y"], "carry": ["id"], **named})
    with pytest.raises(JobError, match=r"'x' is there twice"):
        discover(lake.request())


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, ["--run-id", "2026-11-19"]),
        ({"run_id": "redo"}, ["--run-id", "redo", "--date", "2026-11-19"]),
        ({"limit": 100}, ["--run-id", "2026-11-19-limit-100", "--limit", "100"]),
        ({"publish": False}, ["--run-id", "2026-11-19", "--no-publish"]),
    ],
)
def test_a_run_can_be_asked_for_again_before_anything_is_recorded_of_it(
    lake: Lake, asked: dict[str, Any], options: list[str]
) -> None:
    """The same night and place, as limited and as secret: also where the output has a place for each date."""
    lake.ready(output__uri="out/{date}/")
    first = lake.request(**asked)
    assert first.again == options
    given = dict(zip(options[::2], options[1::2], strict=False))
    again = make_request(
        lake.job_path,
        run_id=given["--run-id"],
        date=given.get("--date"),
        limit=int(given["--limit"]) if "--limit" in given else None,
        publish="--no-publish" not in options,
    )
    assert fixed(replace(again, flow_run=first.flow_run)) == first


@pytest.mark.parametrize("name", ["2026-W47", "20261117", "2026-W47-2", "10101010"])
def test_a_name_that_only_resembles_a_date_is_a_name(lake: Lake, name: str) -> None:
    """Weeks and numbers of tickets: the run is tonight's, and `--date` takes days alone."""
    lake.ready()
    assert lake.request(run_id=name).date == "2026-11-19"
    with pytest.raises(JobError, match=f"^--date '{name}': write a date as 2026-11-19$"):
        lake.request(date=name)


def test_a_run_named_after_one_night_is_not_of_another(lake: Lake) -> None:
    """It would make that night look done, which nobody scored."""
    lake.ready()
    for name in ("2026-11-18", "2026-11-18-limit-5"):
        with pytest.raises(JobError, match=rf"^--run-id {name}: that is the name of another night than --date 2026"):
            lake.request(run_id=name, date="2026-11-19")
    assert lake.request(run_id="2026-11-18", date="2026-11-18").date == "2026-11-18"
    assert lake.request(run_id="2026-11-18", date=None).date == "2026-11-18"


@pytest.mark.parametrize("place", ["latest", "dates/*"])
def test_a_job_never_scores_its_own_predictions_by_any_name_they_have(lake: Lake, place: str) -> None:
    """`latest/data` and `dates/<date>/data` in its output are links to them. Those of another job are input."""
    lake.ready(output__uri="out/", input__uri=f"*/{place}/data/*.parquet")
    with pytest.raises(JobError, match=r"output\.uri: .*/out and input\.uri .* lie in each other"):
        check_request(lake.request())
    lake.write_file("../other/latest/data/a.parquet", 0, 10)
    lake.write_file("../other/dates/2026-11-18/data/a.parquet", 0, 10)
    lake.write_job(output__uri="out/", input__uri=f"other/{place}/data/*.parquet")
    check_request(lake.request())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model__uses": "torch", "model__path": "m.pt2", "model__options": {"half": True}},
            r"options\.half: the t",
        ),
        ({"model__options": {"batch_format": "numpi"}}, r"options\.batch_format: 'numpi' .* did you mean 'numpy'"),
    ],
)
def test_an_option_that_the_adapter_does_not_know_is_refused_before_anything_is_looked_at(
    lake: Lake, changes: dict[str, object], sentence: str
) -> None:
    (lake.folder / "m.pt2").write_bytes(b"no program")
    lake.write_model()
    lake.write_job(**changes)
    with pytest.raises(JobError, match=rf"^model\.{sentence}"):
        check_without_input(lake.request())


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (["out/table"], r"output\.tables\[0\]\.delta: .*/out/table and output\.uri .*/out lie in each other"),
        ([""], r"output\.tables\[0\]\.delta: .* and output\.uri .*/out lie in each other"),
        (["a", "a/b"], r"output\.tables\[1\]\.delta: .*/a/b and output\.tables\[0\]\.delta .*/a lie in each other"),
        (["data/table"], r"output\.tables\[0\]\.delta: .*/data/table and input\.uri .*/data/ lie in each other"),
    ],
)
def test_a_table_has_a_place_of_its_own(lake: Lake, tables: list[str], said: str) -> None:
    """A vacuum of the table deletes what the table does not know there, and the next run would score what is input."""
    lake.ready(output__tables=[{"delta": table or "."} for table in tables])
    with pytest.raises(JobError, match=said):
        check_request(lake.request())


# ---- several runs a day -------------------------------------------------------------------------------------

HOURLY = {"cron": "0 * * * *"}
MORNING_AND_EVENING = {"cron": "0 6,18 * * *", "timezone": "Europe/Berlin"}


def test_what_lies_of_a_daily_job_is_as_it_always_was(lake: Lake) -> None:
    """Byte for byte, with a schedule and without one."""
    for schedule in (None, {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}):
        lake.ready(schedule=schedule)
        request = lake.request()
        assert (request.run_id, request.date) == ("2026-11-19", "2026-11-19")
        record_run(request)
        written = lake.folder / "out/runs/2026-11-19/run.json"
        begun = b'{"run_id": "2026-11-19", "date": "2026-11-19", "limit": null, "at": "AT"}'
        assert re.sub(rb"(?<=\"at\": \")[^\"]+", b"AT", written.read_bytes()) == begun
        moment = dt.datetime(2026, 11, 19, 23, 30, tzinfo=dt.UTC)
        due = make_request(lake.job_path, moment=moment)
        assert due.run_id == ("2026-11-20" if schedule else "2026-11-19")


def test_a_run_is_of_the_last_instant_at_which_it_was_due(lake: Lake) -> None:
    lake.ready(schedule=HOURLY, input__uri="data/{date:%Y/%m/%d/%H}/", output__uri="out/{date}/")
    moment = dt.datetime(2026, 11, 19, 5, 59, tzinfo=dt.UTC)
    request = make_request(lake.job_path, moment=moment)
    assert (request.run_id, request.date) == ("2026-11-19T05", "2026-11-19T05")
    assert request.job.input.uri == f"{lake.folder}/data/2026/11/19/05/"
    assert request.run_uri == f"{lake.folder}/out/2026-11-19/runs/2026-11-19T05"
    assert request.again == ["--run-id", "2026-11-19T05"]
    assert lake.request(run_id="2026-11-19T0500", date=None).run_id == "2026-11-19T05", "an instant has one text"
    limited = make_request(lake.job_path, moment=moment, limit=5)
    assert limited.run_id == "2026-11-19T05-limit-5"
    record_run(limited)
    continued = lake.request(run_id=limited.run_id, date=None)
    assert (continued.date, continued.limit) == ("2026-11-19T05", 5)


def test_a_date_names_an_instant_of_the_schedule(lake: Lake) -> None:
    lake.ready(schedule=MORNING_AND_EVENING)
    assert lake.request(date="2026-11-19T05").run_id == "2026-11-19T05"
    assert lake.request(date="2026-11-19T1700").run_id == "2026-11-19T17"
    assert lake.request(date=None, run_id="2026-11-19T05").date == "2026-11-19T05"
    for wrong in ("2026-11-19", "2026-11-19T06"):
        said = rf"{wrong}: no run is due then; .* of that day 2026-11-19T05, 2026-11-19T17$"
        with pytest.raises(JobError, match=f"^--date {said}"):
            lake.request(date=wrong)
        with pytest.raises(JobError, match=f"^--run-id {said}"):
            lake.request(date=None, run_id=wrong)
    for wrong in ("2026-11-19T5", "2026-11-19T05:00"):
        with pytest.raises(JobError, match=f"^--date '{wrong}': write a date as 2026-11-19$"):
            lake.request(date=wrong)
    with pytest.raises(JobError, match=r"^--date '2026-11-19T25': there is no such time$"):
        lake.request(date="2026-11-19T25")


def test_an_instant_of_a_daily_job_is_refused_as_a_date_and_is_any_name_as_a_name(lake: Lake) -> None:
    lake.ready()
    with pytest.raises(JobError, match=r"^--date 2026-11-19T05: .* write 2026-11-19; only a `schedule` that is due"):
        lake.request(date="2026-11-19T05")
    assert lake.request(run_id="2026-11-18T05").date == "2026-11-19"


@pytest.mark.parametrize("output", ["out/", "out/{date}/"])
def test_a_run_that_began_before_the_schedule_was_changed_keeps_its_time(lake: Lake, output: str) -> None:
    lake.ready(output__uri=output)
    record_run(lake.request(date="2026-11-18"))
    lake.ready(output__uri=output, schedule=HOURLY)
    record_run(lake.request(date="2026-11-19T03"))
    for named in ({"date": "2026-11-18"}, {"date": None, "run_id": "2026-11-18"}):
        assert lake.request(**named).date == "2026-11-18"
    lake.ready(output__uri=output, schedule=MORNING_AND_EVENING)
    assert lake.request(date="2026-11-19T03").run_id == "2026-11-19T03"
    lake.ready(output__uri=output)
    assert lake.request(date="2026-11-19T03").run_id == "2026-11-19T03"
    with pytest.raises(JobError, match="the job's runs are those of days"):
        lake.request(date="2026-11-19T04")


def test_places_that_a_list_names_are_read_as_the_job_says_by_every_caller(lake: Lake) -> None:
    """A command reads the list at once, a flow when its run begins; the workers of both read the same way."""
    (lake.folder / "names.txt").write_text("s3://public-bucket/day/a.parquet\n")
    listed = {"list": "names.txt", "anonymous": True, "within": ["s3://public-bucket/"]}
    lake.ready(input=listed)
    read = make_request(lake.job_path)
    for storage in (read.storage, fixed(read).storage):
        assert isinstance(storage, LakeStorage) and storage.settings.anonymous == ("s3://public-bucket",)
