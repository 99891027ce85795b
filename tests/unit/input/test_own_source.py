"""`input.format: "module:Name"`: the example of the docs as it stands there, and what is said where it is wrong."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import steps as run
from nightjar.flows.cli.main import app
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError, ShardsFailed
from nightjar.inference.job.finding import find
from ownsource import EXAMPLE, RECORD
from support import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Three files of a hundred records, and a note."""
    found = Lake(tmp_path, LOCAL)
    (tmp_path / "data").mkdir()
    for index in range(3):
        records = np.zeros(100, RECORD)
        records["id"] = range(100 * index, 100 * index + 100)
        records["x"] = records["id"] / 4
        records.tofile(tmp_path / f"data/{index}.rec")
    (tmp_path / "data/notes.md").write_text("not a record")
    found.write_model()
    (tmp_path / "readings.py").write_text(EXAMPLE)
    found.write_job(input={"uri": "data/", "format": "readings:Readings"}, carry=["id"])
    return found


def test_the_example_of_the_docs_reads_what_numpy_reads(lake: Lake) -> None:
    lake.run()
    theirs = np.concatenate([np.fromfile(lake.folder / f"data/{index}.rec", RECORD) for index in range(3)])
    found = lake.published()
    assert found["id"].tolist() == theirs["id"].tolist()
    assert found["score"].tolist() == (theirs["x"] * 2).astype("f4").tolist()
    assert found["_row"].tolist() == [*range(100)] * 3
    lake.write_job(
        input={"uri": "data/", "format": "readings:Readings", "where": "x >= 10 AND x < 30"}, carry=["id"],
        rescore={"share": 1},
    )  # fmt: skip
    lake.run()
    assert lake.published()["id"].tolist() == [*range(40, 120)]


@pytest.mark.parametrize("command", [["plan"], ["check", "--engine", "local"]], ids=" ".join)
def test_what_a_source_prints_is_not_in_the_json_of_a_command(
    lake: Lake, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    (lake.folder / "readings.py").write_text(EXAMPLE.replace("rows, rest =", "print('here'); rows, rest ="))
    with suppress(SystemExit):
        app([*command, str(lake.job_path), "--json"], standalone_mode=False)
    assert isinstance(json.loads(capfd.readouterr().out), dict)


def test_the_local_engine_loads_the_model_once(lake: Lake) -> None:
    """The process of preflight scores the passes."""
    lake.write_model(
        "from pathlib import Path\n"
        "class Model:\n"
        "    def __init__(self):\n"
        "        with open(Path(__LIVE__) / 'loads', 'a') as noted:\n"
        "            noted.write('x')\n"
        "    def __call__(self, batch):\n"
        "        return {'score': batch['x'] * 2}\n"
    )
    lake.write_job(input={"uri": "data/", "format": "readings:Readings"}, carry=["id"], model__uses="model:Model")
    lake.run()
    assert (lake.folder / "loads").read_text() == "x"


def test_its_code_is_part_of_the_identity(lake: Lake) -> None:
    lake.run()
    assert lake.run().scored.progress.reused_rows == 300
    (lake.folder / "readings.py").write_text(EXAMPLE.replace("records[name] for", "records[name] + 0 for"))
    assert lake.run().scored.progress.reused_rows == 0


@pytest.mark.parametrize("file", ["readings.py", "layout.py", "lib/layout.py"])
def test_a_source_that_is_edited_between_two_runs_of_a_process_describes_as_it_reads(lake: Lake, file: str) -> None:
    """Also where the edited module is one that it imports, alone or in a package without `__init__.py`."""
    module = file.removesuffix(".py").replace("/", ".")
    if module != "readings":
        begin, end = EXAMPLE.index("RECORD ="), EXAMPLE.index("class Readings")
        (lake.folder / file).parent.mkdir(exist_ok=True)
        (lake.folder / file).write_text(f"import numpy as np\nimport pyarrow as pa\n{EXAMPLE[begin:end]}")
        imported = f"from {module} import COLUMNS, RECORD\n\n"
        (lake.folder / "readings.py").write_text(EXAMPLE[:begin] + imported + EXAMPLE[end:])
    lake.run()
    assert lake.published()["id"].tolist() == [*range(300)]
    (lake.folder / file).write_text((lake.folder / file).read_text().replace('"id"', '"number"'))
    lake.write_job(input={"uri": "data/", "format": "readings:Readings"}, carry=["number"])
    lake.run()
    assert lake.published()["number"].tolist() == [*range(300)]


def test_a_source_that_the_program_imported_before_it_was_edited_is_imported_again(lake: Lake) -> None:
    """As in a notebook."""
    find("input.format", "readings:Readings", lake.folder)
    (lake.folder / "readings.py").write_text(EXAMPLE.replace('"id"', '"number"'))
    lake.write_job(input={"uri": "data/", "format": "readings:Readings"}, carry=["number"])
    assert run.discover(lake.request()).schema.names == ["number", "x"]


def test_the_files_that_it_is_given_are_the_input_and_nothing_outside_the_identity(lake: Lake) -> None:
    lake.write_job(input={"uri": "data/", "format": "readings:Readings"}, carry=["id"], identity="strict")
    assert not [said for said in lake.run().scored.warnings if ".rec" in said]


def test_a_file_that_it_refuses_costs_itself(lake: Lake) -> None:
    with (lake.folder / "data/1.rec").open("ab") as file:
        file.write(b"half")
    with pytest.raises(ShardsFailed, match=r"1\.rec: 4 bytes are left behind its last record"):
        lake.run()


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("readings:Reading", EXAMPLE, "module 'readings' (readings.py) has no 'Reading'; did you mean 'Readings'"),
        ("reading:Readings", EXAMPLE, "input.format: there is no module 'reading' in "),
        ("readings:Readings", "class Readings:\n    name = 'x'\n", "input.format: derive readings:Readings from "),
        ("readings:Readings", EXAMPLE.replace("def read(", "def raed("), "making readings:Readings failed"),
        ("readings:Readings", "1 / 0\n", "input.format: importing module 'readings' failed with ZeroDivisionError"),
    ],
)  # fmt: skip
def test_what_is_no_source_is_told(lake: Lake, name: str, code: str, said: str) -> None:
    (lake.folder / "readings.py").write_text(code)
    lake.write_job(input={"uri": "data/", "format": name}, carry=["id"])
    with pytest.raises(JobError, match=re.escape(said)):
        run.discover(lake.request())


READ = "        return pa.table({name: records[name] for name in RECORD.names})"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("        raise KeyError('speed')", "failed with KeyError: 'speed'"),
        ("        return dict(id=[1])", "failed with TypeError: it read a dict, not a pyarrow.Table or RowsRead"),
        (
            f"        from nightjar.inference import RowsRead\n{READ.replace('return', 'found =')}\n"
            "        return RowsRead(found, {500: 'bad'})",
            "failed with ValueError: its failures have 500: 'bad', in a table of 100 rows",
        ),
    ],
)
def test_what_its_read_raises_costs_that_file(lake: Lake, line: str, said: str) -> None:
    """Any error is told with the file and the source, in preflight and in the run; the other files are scored."""
    code = EXAMPLE.replace(READ, f"        if '0.rec' not in piece.uri:\n    {READ}\n{line}")
    (lake.folder / "readings.py").write_text(code)
    with pytest.raises(ShardsFailed, match=rf"1 of 3 shards .*/0\.rec: readings:Readings {re.escape(said)}"):
        lake.run()
    assert sum(record["rows_out"] for record in lake.records() if record["t"] == "receipt") == 200


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "    def describe(self, storage, entry):\n        raise KeyError('head')\n",
            r"input\.uri: no file can be read; the first: .*/0\.rec: readings:Readings failed with KeyError: 'head'",
        ),
        (
            "    def describe(self, storage, entry):\n        pass\n",
            r"/0\.rec: readings:Readings failed with TypeError: describe returned a NoneType, not a Description",
        ),
        (
            "    def files(self, storage, uri):\n        raise OSError(5, 'no disk')\n",
            r"input\.format: readings:Readings failed with OSError: \[Errno 5\] no disk, when it listed /.*/data/",
        ),
        (
            "    def files(self, storage, uri):\n        return [uri]\n",
            r"input\.format: readings:Readings failed with TypeError: files gave a str, not an Entry, when it listed",
        ),
    ],
)
def test_what_it_raises_while_the_input_is_looked_for_is_one_sentence(lake: Lake, code: str, said: str) -> None:
    (lake.folder / "readings.py").write_text(f"{EXAMPLE}\n{code}")
    with pytest.raises(JobError, match=said):
        run.discover(lake.request())


def test_a_column_that_it_does_not_give_is_told(lake: Lake) -> None:
    (lake.folder / "readings.py").write_text(EXAMPLE.replace("for name in RECORD.names", "for name in ['id']"))
    with pytest.raises(ShardsFailed, match="column 'x' is missing"):
        lake.run()
