"""The Python functions: the public names, the page that documents them, and its example, run as it stands."""

from __future__ import annotations

import datetime as dt
import logging
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest
from prefect.logging.configuration import setup_logging

from lazily import lazily
from nightjar.flows import Files, files, status
from nightjar.flows.backfilling import nights
from nightjar.flows.prefect_api import server
from nightjar.inference.errors import JobError, Missing
from nightjar.inference.output.nights import published
from support import ROOT, Lake

polars = lazily("polars")

DOCS = ROOT / "docs"
PAGE = (DOCS / "python.md").read_text()
PACKAGES = ("nightjar.flows", "nightjar.inference")


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    """Those listed, those that can be had and those that type checkers see are the same."""
    package = import_module(name)
    assert sorted(package.__all__) == sorted(package._MODULES) == sorted(typed(package))
    for public in package.__all__:
        assert getattr(package, public).__name__ == public or public == "nightly"
        assert re.search(rf"`{public}\b", PAGE), f"docs/python.md says nothing of {public}"


def typed(package: ModuleType) -> list[str]:
    """The names that the package imports for type checkers alone."""
    assert package.__file__ is not None
    return re.findall(r"^    from .* import (\w+) as \1$", Path(package.__file__).read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", PACKAGES)
def test_another_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = import_module(name).nothing


def test_no_module_has_the_name_of_a_public_function() -> None:
    """Python would let `nightjar.flows.nightly` mean the module, once something has imported it."""
    for package in PACKAGES:
        folder = Path(str(import_module(package).__file__)).parent
        assert not {each.stem for each in folder.iterdir()} & set(import_module(package).__all__), package


def test_the_rows_of_a_night_are_read_from_exactly_its_files(lake: Lake) -> None:
    lake.ready().run(engine="local")
    (lake.revision() / "data" / "left-over.parquet").write_bytes(b"no part of it")
    night = files(lake.job_path)
    assert (night.run_id, night.revision, night.rows, len(night.uris)) == ("2026-11-19", 1, 8000, 8)
    assert night.bytes == sum(Path(uri).stat().st_size for uri in night.uris)
    table = night.dataset().to_table(columns=["id", "score"])
    assert table["id"].to_pylist() == list(range(8000))
    assert polars.scan_pyarrow_dataset(night.dataset()).select("score").sum().collect().item() == 2 * sum(range(8000))
    assert files(lake.job_path, date=dt.date(2026, 11, 19)) == night
    with pytest.raises(PermissionError):
        pq.write_table(table, f"{night.uris[0]}.new", filesystem=night.filesystem())
    with pytest.raises(JobError, match="the run '2026-11-18' is not published"):
        files(lake.job_path, date="2026-11-18")


def test_a_file_that_is_gone_is_named(lake: Lake) -> None:
    lake.ready().run(engine="local")
    night = files(lake.job_path)
    Path(night.uris[3]).unlink()
    with pytest.raises((FileNotFoundError, Missing), match=re.escape(night.uris[3])):
        night.dataset().to_table()


@pytest.mark.parametrize("gone", ["runs", "data", "manifest-000002.json"])
def test_a_night_that_was_deleted_is_told_in_one_sentence(lake: Lake, gone: str) -> None:
    """Whether all of it was deleted, or only what is read first; and what makes it again."""
    lake.ready().run(engine="local")
    place = lake.out / "runs" if gone == "runs" else lake.revision() / gone
    place.rename(lake.folder / "elsewhere")
    said = "the files of the run '2026-11-19' were deleted after it was published \\(.*no such file\\); "
    with pytest.raises(Missing, match=f"^{said}`nightjar run JOB --run-id 2026-11-19 --fresh` scores it again$"):
        files(lake.job_path)
    lake.run(engine="local", fresh=True)
    assert files(lake.job_path).rows == 8000


def test_a_wrong_end_of_a_backfill_is_named_as_it_was_written(lake: Lake) -> None:
    lake.ready()
    for first, last, said in (("1", "2026-11-19", "--from '1'"), ("2026-11-19", "x", "--to 'x'")):
        with pytest.raises(JobError, match=f"^{said}: write a date as 2026-11-19"):
            nights(lake.job_path, first, last, None, "local", lambda _: None)


def test_a_night_without_rows_is_an_empty_dataset(lake: Lake) -> None:
    night = Files(lake.ready().request().storage, 1, "2026-11-19", "2026-11-19", 1)
    assert night.dataset().count_rows() == 0


def test_the_status_of_a_run_that_never_began(lake: Lake) -> None:
    lake.ready()
    found = status(lake.job_path, date="2026-11-19")
    assert (found.state, found.revision, found.published) == ("unknown", 0, ())
    assert [*found.commands] == ["look", "try"]


def test_dates_and_files_are_records_of_what_the_storage_has(lake: Lake) -> None:
    """`files` of a named run, as the command takes it."""
    lake.ready().run(engine="local", run_id="trial")
    request = lake.request(run_id="trial")
    assert files(lake.job_path, run_id="trial") == published(request.storage, request.output, "trial")


def test_a_run_leaves_what_prefect_prints_as_it_was() -> None:
    """A flow of the program that called `run` prints its logs afterwards, and errors of logging are printed again."""
    setup_logging()
    before = {type(handler).__name__: handler.level for handler in server._terminals()}
    assert before
    with pytest.raises(KeyError), server.as_found():
        setup_logging()
        server.quiet()
        assert {handler.level for handler in server._terminals()} == {logging.CRITICAL + 1}
        assert not logging.raiseExceptions
        raise KeyError("the run failed")
    assert {type(handler).__name__: handler.level for handler in server._terminals()} == before
    assert logging.raiseExceptions
