"""`input.format` decides what the rows of a file are: another one scores them again."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from nightjar.inference.engine import LOCAL
from support import Lake

LENGTHS = 'def score(batch):\n    return {"score": [len(text) for text in batch["text"]]}\n'


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    (tmp_path / "data").mkdir()
    found = Lake(tmp_path, LOCAL)
    found.write_model(LENGTHS)
    return found


def scored(lake: Lake, name: str | None = None) -> list[float]:
    """The scores that readers see after a run with this format."""
    given = {"input__format": name} if name else {}
    lake.write_job(model__features=["text"], carry=[], **given)
    lake.run()
    found: list[float] = lake.published()["score"].tolist()
    return found


def test_a_format_that_was_forgotten_is_not_published_over_with_the_old_results(lake: Lake) -> None:
    (lake.folder / "data" / "a.txt").write_text('{"text": "aa"}\n{"text": "bbbb"}\n{"text": "c"}\n')
    assert scored(lake) == [14, 16, 13]
    assert scored(lake, "jsonl") == [2, 4, 1]


def test_rows_that_the_other_format_counted_are_not_kept(lake: Lake) -> None:
    """Neither where they were counted, nor where a file is packed and they are not known."""
    content = b"text\nhello\nworld!\n"
    (lake.folder / "data" / "a.txt.gz").write_bytes(gzip.compress(content))
    (lake.folder / "data" / "b.txt").write_bytes(content)
    assert scored(lake) == [4, 5, 6] * 2
    assert scored(lake, "csv") == [5, 6] * 2
    assert scored(lake, "text") == [4, 5, 6] * 2
