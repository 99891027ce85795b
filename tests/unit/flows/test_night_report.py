"""The report of a night: what it says of each ending, what it escapes, and how large it may become."""

from __future__ import annotations

import html
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from faults import FaultyStorage, fail
from nightjar.flows.cli.main import app
from nightjar.flows.pages.charts import drift_chart, trend_chart
from nightjar.flows.pages.reportfiles import leave, made, write, written
from nightjar.flows.pages.reportpage import report_page
from nightjar.inference.engine import LOCAL, RAY
from nightjar.inference.errors import GateFailed, JobError, RunFailed, Unanswered
from nightjar.inference.history.night import (
    INCIDENTS_SHOWN,
    MAX_COLUMNS,
    MAX_GROUPED,
    SHARDS_SHOWN,
    Report,
    SlowShard,
    beside,
    collect,
    slow_shard,
)
from nightjar.inference.history.run_tables import Incident
from nightjar.inference.metrics.binary import BinaryState
from nightjar.inference.metrics.drift import Group
from nightjar.inference.metrics.profile import Profile
from nightjar.inference.output.outcomes import OUTCOMES
from nightjar.inference.output.visibility import unpublish
from nightjar.inference.run.account import Account
from nightjar.inference.run.approving import answer
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.validation.gates import GateResult
from support import NIGHT, Lake

SECTIONS = ["verdict", "different", "gates", "metrics", "time", "shards", "quarantine", "origin"]
NASTY = "<script>alert(1)</script>"


class Seen(HTMLParser):
    """The tags of a page, the ids of its headings, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.headings: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "h2":
            self.headings.append(dict(attrs)["id"] or "")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def night(lake: Lake) -> Lake:
    """A published night in this process, whose columns are described."""
    lake.engine = LOCAL
    lake.ready(profile="all").run()
    return lake


ACCOUNT = Account(wall_s=7.5, parts={"score": 7.5}, workers=1, scoring={"predict": 7.5}, worker_s=7.5)
"""Where the time went of a night that ran as a flow."""


def page_of(lake: Lake, date: str = NIGHT, account: Account | None = None) -> str:
    report = write(lake.request(date=date), account)
    return Path(report.page).read_text()


def verdict_of(page: str) -> str:
    """The text of the first section."""
    return Seen(page.partition('<h2 id="different">')[0]).text


def shown(report: Report, commands: Mapping[str, str] = MappingProxyType({})) -> str:
    return report_page(report, commands)


def test_the_page_begins_with_the_verdict_and_has_every_section(night: Lake) -> None:
    seen = Seen(page_of(night, account=ACCOUNT))
    assert seen.headings == SECTIONS
    assert "Published as #1" in seen.text
    assert "8,000" in seen.text
    assert seen.tags.count("figure") >= 2
    assert "script" not in seen.tags
    assert not re.search(r"(src|href)=\"(?!#)", page_of(night)), "it needs nothing else"


def test_the_page_has_the_job_as_it_was_run(night: Lake) -> None:
    """Longer than any other text of a page."""
    night.write_model(
        "class Model:\n"
        "    def __init__(self, **weights):\n"
        "        pass\n"
        "    def __call__(self, batch):\n"
        "        return {'score': batch['x']}\n"
    )
    weights = {f"weight_{number:03}": "<b>" for number in range(200)}
    night.write_job(model__uses="model:Model", model__options=weights)
    night.run(date="2026-11-21")
    page = page_of(night, date="2026-11-21")
    assert html.unescape(page).count("weight_") == 200
    assert "<b>" not in page


def test_the_same_night_gives_the_same_bytes(night: Lake) -> None:
    assert page_of(night) == page_of(night)


def test_the_report_lies_beside_the_manifest_and_is_replaced(night: Lake) -> None:
    request = night.request()
    assert written(request) == ""
    report = write(request)
    assert written(request) == report.page == str(night.revision() / "report.html")
    before = Path(report.page).read_bytes()
    write(request)
    assert Path(report.page).read_bytes() == before


def test_a_refused_night_shows_every_gate_and_the_columns_that_differ(night: Lake) -> None:
    night.write_model("def score(batch):\n    return {'score': batch['x'] * 0 + 9}\n")
    night.write_job(profile="all", checks=[{"drift": "score", "psi": 0.2}])
    with pytest.raises(GateFailed):
        night.run(date="2026-11-20")
    request = night.request(date="2026-11-20")
    report = collect(request)
    assert {gate.name: gate.passed for gate in report.gates} == {
        "complete": True,
        "quarantine": True,
        "score.drift": False,
    }
    assert report.metrics is not None
    (compared,) = report.compared
    assert compared.columns[0].column == "score"
    assert compared.columns[0].groups
    seen = Seen(page_of(night, "2026-11-20"))
    assert seen.headings == SECTIONS
    assert "Refused by gate score.drift" in seen.text
    assert f"nightjar run {night.job_path} --run-id 2026-11-20 --engine local" in seen.text
    assert "score: tonight and 2026-11-19, the last published night" in seen.text


def test_each_gate_that_refuses_has_a_paragraph_of_its_own(night: Lake) -> None:
    night.write_job(checks=[{"column": "score", "max": 5}, {"column": "score", "min": 1}])
    with pytest.raises(GateFailed):
        night.run(date="2026-11-20")
    page = page_of(night, "2026-11-20")
    assert "<p>The greatest &#39;score&#39; is 15998, above" in page
    assert "<p>The smallest &#39;score&#39; is 0, below" in page


def test_a_night_that_asks_says_so_and_how_to_answer(night: Lake) -> None:
    night.write_model("def score(batch):\n    return {'score': batch['x'] * 0 + 9}\n")
    night.write_job(profile="all", checks=[{"drift": "score", "on_fail": "ask"}])
    with pytest.raises(Unanswered):
        night.run(date="2026-11-20")
    seen = Seen(page_of(night, "2026-11-20"))
    assert "Asks a person: gate score.drift" in seen.text
    assert f"nightjar approve {night.job_path} 2026-11-20" in seen.text


def test_a_file_that_cannot_be_read_is_named_with_what_mends_it(lake: Lake) -> None:
    lake.engine = LOCAL
    lake.ready(retry__attempts=1)
    file = lake.folder / "data" / "part-02.parquet"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(RunFailed):
        lake.run()
    assert f"replace {file}, or remove it from the input" in verdict_of(page_of(lake))


def test_the_verdict_says_why_shards_were_scored_again(night: Lake) -> None:
    night.write_model("def score(batch):\n    return {'score': batch['x'] * 3}\n")
    night.run()
    assert "model.py changed: 8 of 8 shards are scored" in verdict_of(page_of(night))


def test_a_published_night_has_the_command_that_takes_it_back(night: Lake) -> None:
    """It is pasted from the page as it was made, also when later nights are published."""
    first = verdict_of(page_of(night))
    assert f"nightjar unpublish {night.job_path} 2026-11-19" in first
    night.run(date="2026-11-20")
    assert verdict_of(page_of(night)) == first
    said = verdict_of(page_of(night, "2026-11-20"))
    assert f"nightjar unpublish {night.job_path} 2026-11-20\n" in said
    assert "nightjar rollback" not in said
    unpublish(night.request().storage, night.request().output, "2026-11-19")
    assert "if it is wrong" not in verdict_of(page_of(night))


def test_what_a_person_takes_back_or_shows_again_is_so_on_its_page(
    night: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands make the page anew, if there is one."""

    def did(*words: str) -> list[str]:
        app([words[0], str(night.job_path), *words[1:]], standalone_mode=False)
        assert capsys.readouterr().err == ""
        return [verdict_of(Path(night.revision(run_id=run), "report.html").read_text()) for run in runs]

    runs = [NIGHT, "2026-11-20"]
    night.run(date=runs[1])
    for run in runs:
        page_of(night, run)
    night.run(date="2026-11-21")  # has no page
    for page in did("rollback", "--to", "0"):
        assert "Rolled back" in page
        assert "Readers see nothing of this run." in page
    assert "Published as #2" in did("republish", "2026-11-20")[1]
    assert "Rolled back" in did("unpublish", "2026-11-20")[1]
    assert not Path(night.revision(run_id="2026-11-21"), "report.html").exists()


def test_a_check_that_only_warns_is_in_the_verdict(night: Lake) -> None:
    night.write_job(checks=[{"column": "score", "max": 5, "on_fail": "warn"}])
    night.run(date="2026-11-20")
    assert "score.max: The greatest 'score' is 15998, above checks[0].max" in verdict_of(page_of(night, "2026-11-20"))


def test_a_slow_shard_is_named_with_the_command_that_shows_what_it_printed(night: Lake) -> None:
    night.write_model(
        "import time\ndef score(batch):\n    time.sleep(3 * (5300 in batch['x']))\n    return {'score': batch['x']}\n"
    )
    night.run(date="2026-11-20")
    report = collect(night.request(date="2026-11-20"))
    slow = report.slow
    assert slow is not None
    assert slow.seconds >= 1 > slow.others_s
    text = Seen(page_of(night, "2026-11-20")).text
    assert "The slowest shard, part-02.parquet[1000:2000], took " in text
    assert f"nightjar logs {night.job_path} 2026-11-20 --shard {slow.shard}" in text


def test_every_command_of_a_named_run_says_the_date_of_its_output(
    lake: Lake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where each night has an output of its own: pasted on another day, the commands mean that of this night."""
    lake.engine = LOCAL
    lake.ready(
        output__uri="out/{date}/",
        carry=["id"],
        late_labels={"key": "id", "label": "y", "input": {"uri": "labels.parquet"}},
    )
    lake.run(run_id="repair", date="2026-11-18")
    pq.write_table(pa.table({"id": range(8000), "y": [id % 2 for id in range(8000)]}), lake.folder / "labels.parquet")
    request = lake.request(run_id="repair", date="2026-11-18")
    report, page = made(request)
    slow = SlowShard(report.shards[0].shard, 9.0, 1.0)
    page += shown(replace(report, slow=slow))
    found = {line for line in re.split(r"[\n<>]|: (?=nightjar)", html.unescape(page)) if line.startswith("nightjar ")}
    assert {shlex.split(line)[1] for line in found} == {"report", "logs", "evaluate", "unpublish"}
    for line in sorted(found):
        assert line.partition(str(lake.job_path))[2].startswith(" repair --date 2026-11-18")
        capsys.readouterr()
        app(shlex.split(line)[1:], standalone_mode=False)


def test_no_shard_is_called_slow_that_took_about_as_long_as_the_others() -> None:
    assert slow_shard(outcomes_of(100_000, 16)) is None


def test_a_rejected_night_says_who_said_no_once_and_how_to_say_yes_after_all(night: Lake) -> None:
    night.write_job(checks=[{"column": "score", "max": 5, "on_fail": "ask"}])
    with pytest.raises(Unanswered) as asked:
        night.run(date="2026-11-20")
    # As the command answers, which does not know where the night was scored.
    answer(night.request(date="2026-11-20", engine=RAY), approved=False, by="ann", note="too high")
    said = verdict_of(page_of(night, "2026-11-20"))
    assert "Not approved" in said
    assert said.count("rejected by ann") == 1
    assert f"nightjar approve {night.job_path} 2026-11-20 --question {asked.value.question}\n" in said
    assert f"nightjar run {night.job_path} --run-id 2026-11-20 --engine local\n" in said


def test_the_trend_has_the_nights_before_and_tonight(night: Lake) -> None:
    night.write_job(checks=[{"column": "score", "max": 1e9}])
    for day in (20, 21):
        night.run(date=f"2026-11-{day}")
    report = collect(night.request(date="2026-11-21"))
    assert [each.date for each in report.trend] == ["2026-11-19", "2026-11-20", "2026-11-21"]
    assert report.trend[-1].figures["score.max"] == 2 * 7999
    assert "score.max over 3 nights" in page_of(night, "2026-11-21")


def test_the_page_says_how_many_rows_are_described_if_these_are_not_all(night: Lake) -> None:
    """The figures of the columns are theirs."""
    night.write_job(profile={"columns": "all", "share": 0.25})
    night.run(date="2026-11-20")
    (drift,) = collect(night.request(date="2026-11-20")).compared
    assert drift.drawn is not None
    assert 1800 < drift.drawn < 2200
    said = f"Tonight is described by {drift.drawn:,} rows, drawn at random (profile.share)."
    assert said in Seen(page_of(night, "2026-11-20")).text
    night.write_job(profile="all")
    night.run(date="2026-11-21")
    assert "drawn at random" not in Seen(page_of(night, "2026-11-21")).text


def test_the_page_says_why_there_is_no_evaluation(lake: Lake) -> None:
    """No label, labels that come later, and labels that are all null: three reasons, and three things to do."""
    lake.engine = LOCAL
    lake.ready(carry=["id"]).run()
    assert "the job names no label" in Seen(page_of(lake)).text
    lake.write_job(carry=["id"], late_labels={"key": "id", "label": "y"})
    evaluates = shlex.join(["nightjar", "evaluate", str(lake.job_path), NIGHT])
    assert f"Labels come later. When they are there: {evaluates}" in Seen(page_of(lake)).text
    found = collect(lake.request())
    assert found.metrics is not None
    none = BinaryState("y", "score").results()
    empty = replace(found, metrics=replace(found.metrics, evaluation=replace(none, excluded_null_labels=8000)))
    assert "8,000 rows have no 'y', and of the others 0 have no usable 'score'" in Seen(shown(empty)).text


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(night: Lake) -> None:
    (profile,) = night.revision().glob("profile-*")
    profile.write_bytes(b"damaged")
    seen = Seen(page_of(night))
    assert f"{profile}: not the file that was published" in seen.text
    assert seen.headings == SECTIONS


@pytest.mark.parametrize("value", [1e308, -1e308, 1e300, math.inf, math.nan, pytest.param(10**400, id="an int")])
def test_a_value_that_is_too_large_to_draw_is_a_gap_and_in_the_table(value: float) -> None:
    """Tonight and in the nights after it, whose line has it."""
    for nights in ([1.0, value], [value, value], [value, 1.0, -1.0]):
        chart = trend_chart("score.max", [(f"2026-11-{19 + at}", each) for at, each in enumerate(nights)])
        assert "of them not drawn: NaN, infinite or too large" in chart.title
        assert [shown for _, shown in chart.rows if len(shown.text) > 15] == [], "no label has all digits of it"
        assert len(chart.line) == sum(abs(each) < 1e15 for each in nights)


def test_a_night_with_a_value_near_the_largest_float_has_its_report_and_so_have_the_nights_after(lake: Lake) -> None:
    lake.engine = LOCAL
    lake.write_model("import numpy as np\ndef score(batch):\n    return {'score': np.full(len(batch['x']), 1.7e308)}\n")
    lake.ready(model__outputs={"score": "float64"}, checks=[{"column": "score", "min": 0}])
    warned: list[str] = []
    for day in ("18", "19", "20"):
        lake.run(date=f"2026-11-{day}")
        assert leave(lake.request(date=f"2026-11-{day}"), warned.append)
        text = Seen(page_of(lake, f"2026-11-{day}")).text
        assert "Not in this report" not in text
    assert "score.max over 3 nights, 3 of them not drawn: NaN, infinite or too large" in text
    assert "1.70000e+308" in text
    assert not warned


def test_a_run_that_never_began_has_no_report(lake: Lake) -> None:
    lake.ready()
    with pytest.raises(JobError, match="nothing of the run '2026-11-19' is there"):
        write(lake.request())
    leave(lake.request(), pytest.fail)


def test_a_report_that_cannot_be_written_is_said_and_fails_nothing(night: Lake) -> None:
    storage = FaultyStorage(LakeStorage(), [fail("write", "*report.html")])
    said: list[str] = []
    leave(night.request(storage=storage), said.append)
    (told,) = said
    assert told.startswith("no report of this night: ")


def test_a_run_that_has_its_account_in_hand_need_not_read_it(night: Lake) -> None:
    storage = FaultyStorage(LakeStorage(), [fail("read", "*/account-*.json", nth=None)])
    left = leave(night.request(storage=storage), pytest.fail, ACCOUNT)
    assert left is not None
    assert left.page == str(night.revision() / "report.html")
    page = Path(left.page).read_text()
    assert "The 7.5 s of the run, in their order" in page
    assert "<dt>took</dt><dd>7.5 s</dd>" in page
    assert "Not in this report" not in page


def nasty(report: Report) -> Report:
    """A report in which every text from outside is a script."""
    gate = GateResult(NASTY, False, NASTY, NASTY, NASTY)
    lost = Incident(NASTY, NASTY, NASTY, NASTY, NASTY, 1, None, NASTY, NASTY)
    (night,) = beside(NASTY, *[_profile(NASTY, value) for value in ("a", NASTY)]).columns
    compared = replace(report.compared[0], called=NASTY, columns=(replace(night, changed=True),))
    shards = tuple(
        replace(each, input=NASTY, why=NASTY, worker=NASTY, printed_last=(NASTY,)) for each in report.shards[:2]
    )
    assert report.manifest is not None
    return replace(
        report,
        request=replace(report.request, job_path=NASTY),
        manifest=replace(report.manifest, input=NASTY, libraries={NASTY: NASTY}),
        gates=(gate,),
        incidents=(lost, replace(lost, attempt=1)),
        shards=shards,
        compared=(compared,),
        again=(NASTY,),
        notes=(NASTY,),
        unread=(NASTY,),
    )


def _profile(column: str, value: str) -> Profile:
    profile = Profile.empty([column])
    profile.update(pa.table({column: [value] * 100}))
    return profile


def test_text_from_outside_is_text_in_the_page(night: Lake) -> None:
    """Of columns, values, file names, errors, gates, workers and commands: also in the plots."""
    page = shown(nasty(collect(night.request())), {"look": NASTY})
    seen = Seen(page)
    assert "script" not in seen.tags
    assert "<script" not in page
    assert seen.text.count(NASTY) > 20
    assert "&lt;script&gt;al" in "".join(re.findall(r"<figure.*?</figure>", page, re.DOTALL)), "a group's name"


def test_control_characters_are_shown(night: Lake) -> None:
    report = replace(collect(night.request()), notes=("yes\x1b[31m\u202e\udcff",))
    page = shown(report)
    assert r"yes\x1b[31m\u202e\udcff" in page
    page.encode()


def outcomes_of(shards: int, workers: int) -> pa.Table:
    """The outcomes of a large night."""
    at = np.arange(shards)
    columns = {
        "shard": [f"{index:020x}" for index in at],
        "rows": at * 0 + 1000,
        "pieces": [[]] * shards,
        "status": ["committed"] * shards,
        "worker": [f"host-{index % workers:03d}/actor" for index in at],
        "rows_in": at * 0 + 1000,
        "rows_out": at * 0 + 1000,
        "seconds": 0.5 + (at % 7) / 10,
        "started_at": 1.7e9 + at / workers,
        "adopted_from": [""] * shards,
    }
    arrays = [
        pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(shards, field.type)
        for field in OUTCOMES
    ]
    return pa.Table.from_arrays(arrays, schema=OUTCOMES)


def wide(columns: int, shift: float) -> Profile:
    """The profile of many columns, numbers and texts."""
    at = np.arange(500)
    found = {f"column {n:03d} {'x' * 40}": at * (1 + n) + shift * 500 for n in range(0, columns, 2)}
    texts = {
        f"column {n:03d} {'x' * 40}": [f"value {shift} {(i * n) % 60} {'y' * 50}" for i in at]
        for n in range(1, columns, 2)
    }
    table = pa.table({**found, **texts})
    profile = Profile.empty(table.column_names)
    profile.update(table)
    return profile


def test_a_large_night_gives_a_page_of_less_than_5_mb(night: Lake) -> None:
    """As many shards as are shown, 200 columns that all differ, more incidents than are shown, and long texts."""
    report = collect(night.request())
    compared = beside("the night before", wide(200, 0.0), wide(200, 1.0))
    assert (compared.total, len(compared.columns)) == (200, 200)
    assert sum(bool(each.groups) for each in compared.columns) == MAX_GROUPED
    long = "e" * 100_000
    lost = Incident("ValueError", "quarantined", long, long, long, 1, None, "s")
    gates = tuple(GateResult(f"column {n}.drift", n % 2 == 0, long, "0.2", long) for n in range(400))
    large = replace(
        report,
        compared=(compared,),
        shards=report.shards[:1] * SHARDS_SHOWN,
        incidents=(lost,) * INCIDENTS_SHOWN,
        gates=gates,
    )
    page = shown(large)
    assert len(page.encode()) < 5_000_000
    assert "(the first 300 of 400)" in page


def test_a_column_of_many_groups_shows_those_that_differ_most() -> None:
    groups = [Group(f"g{n}", 10, 10 + n) for n in range(40)]
    chart = drift_chart("c", "the night before", groups)
    assert {row[0].text for row in chart.rows} >= {"g39", "g38"}
    assert len(chart.rows) == 12
    assert "the 12 of 40 groups that differ most" in chart.title


def test_more_columns_than_a_table_shows_are_counted() -> None:
    found = beside("before", wide(MAX_COLUMNS + 50, 0.0), wide(MAX_COLUMNS + 50, 1.0))
    assert (len(found.columns), found.total) == (MAX_COLUMNS, MAX_COLUMNS + 50)


def test_a_group_of_a_column_keeps_its_rows() -> None:
    (column,) = beside("before", _profile("c", "a"), _profile("c", "b")).columns
    assert column.groups == (
        Group("a", 100, 0),
        Group("b", 0, 100),
        Group("other values", 0, 0),
        Group("no value", 0, 0),
    )
