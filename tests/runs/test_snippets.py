"""Every Python block and every job of the README and the docs is run with the library that it names, or why not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import GateFailed
from nightjar.inference.job.file import parse_job
from nightjar.inference.predictors.user import check_usable, imported
from pages import PAGES
from support import Lake

BLOCKS = [
    (f"{page.name}: {next(line for line in block.splitlines() if line)[:50]}", kind, block)
    for page in PAGES
    for kind, block in re.findall(r"```(python|yaml)\n(.*?)```", page.read_text(), re.DOTALL)
    if kind == "python" or "name" in yaml.safe_load(block)
]
ELSEWHERE = {
    "python.md: from nightjar.flows import files, run, status": "test_python_functions.py runs it",
    "python.md: from nightjar.inference import GateFailed, JobErro": "test_python_functions.py runs it",
    'input.md: """readings.py: files of records of 12 bytes, as a': "test_own_source.py runs it",
    "gates.md: # mymetrics.py, beside the job file": "test_accumulators.py runs it",
    "gates.md: name: late": "test_accumulators.py and test_own_figures.py run what it names",
    "language-models.md: name: reviews": "vLLM, and an endpoint: test_vllm.py and test_language.py ask both",
}
HERE = {
    "README.md: # job.yaml",
    "README.md: # predict.py, beside job.yaml",
    "gates.md: from nightjar.inference import Judgement, NightEvi",
    "models.md: import asyncio",
    "language-models.md: # summarise.py",
    "language-models.md: name: summaries",
    "reading.md: import json, os, duckdb, pandas, polars  # in out/",
    "reading.md: import deltalake, duckdb, polars",
}


def snippets(name: str) -> list[str]:
    return [block for each, _, block in BLOCKS if each.partition(": ")[2].startswith(name)]


def test_every_block_is_accounted_for() -> None:
    assert {name for name, _, _ in BLOCKS} == HERE | ELSEWHERE.keys()


def test_the_job_of_the_readme_scores_with_scikit_learn(lake: Lake) -> None:
    """As pasted, but for the bucket. The model was fitted with a DataFrame, whose text a pipeline encodes."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    chance = np.random.default_rng(0)
    frame = pd.DataFrame({"age": chance.integers(18, 90, 300), "plan": chance.choice(["a", "b"], 300)})
    frame["spend"] = chance.random(300)
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()).fit(frame, frame["age"] > 50)
    (job,), (code,) = snippets("# job.yaml"), snippets("# predict.py")
    lake.job_path.write_text(job.replace("s3://lake/", ""))
    (lake.folder / "predict.py").write_text(code)
    joblib.dump(model, lake.folder / "churn.joblib")
    (lake.folder / "customers" / "2026-11-19").mkdir(parents=True)
    rows = pa.Table.from_pandas(frame).append_column("customer_id", pa.array(range(300)))
    pq.write_table(rows, lake.folder / "customers" / "2026-11-19" / "a.parquet")
    assert lake.run(engine=LOCAL).publication.number == 1
    np.testing.assert_allclose(lake.published()["score"], model.predict_proba(frame)[:, 1], rtol=1e-6)


def test_the_check_of_ones_own_judges(lake: Lake) -> None:
    (code,) = snippets("from nightjar.inference import Judgement")
    lake.write_model("def score(batch):\n    return {'score': batch['x'], 'flag': batch['x'] * 0 + FLAG}\nFLAG = 0\n")
    (lake.folder / "mychecks.py").write_text(code)
    checks = [{"column": "flag", "nulls": 0}, {"call": "mychecks:no_flagged_customers"}]
    lake.ready(model__outputs={"score": "float32", "flag": "float32"}, checks=checks)
    lake.run(engine=LOCAL)
    lake.write_model((lake.folder / "model.py").read_text().replace("FLAG = 0", "FLAG = 1"))
    with pytest.raises(GateFailed, match="Ask the fraud desk"):
        lake.run(engine=LOCAL, date="2026-11-20")
    lake.write_model((lake.folder / "model.py").read_text().replace("FLAG = 1", "FLAG = 0"))
    for part in ("00", "01", "02"):
        (lake.folder / "data" / f"part-{part}.parquet").unlink()
    with pytest.raises(GateFailed, match="2,000 rows, and 8,000 the night before"):
        lake.run(engine=LOCAL, date="2026-11-21")


def test_a_row_that_an_async_class_cannot_ask_for_is_quarantined(lake: Lake) -> None:
    (code,) = snippets("import asyncio")
    lake.write_texts(["a", "b", "bad", "d"], row_group=4)
    lake.write_model(code + "\nasync def ask(text):\n    return {'a': 'A', 'b': 'B', 'd': 'D'}[text]\n")
    lake.write_job(
        model={"uses": "model:Ask", "features": ["text"], "outputs": {"answer": "string"}},
        carry=["id"],
        retry__max_quarantined=0.5,
    )
    lake.run(engine=LOCAL)
    assert lake.published()["answer"].tolist() == ["A", "B", "D"]
    assert lake.quarantined()["_row"].tolist() == [2]


def test_a_processor_of_ray_is_followed(tmp_path: Path) -> None:
    """Its model needs vLLM, and test_vllm.py has one: here are the objects that the job names, called for a row."""
    (job,), (code,) = snippets("name: summaries"), snippets("# summarise.py")
    (tmp_path / "summarise.py").write_text(code)
    asked = parse_job(yaml.safe_load(job), tmp_path / "job.yaml")
    found = imported(asked)
    check_usable(asked, found)
    assert "a text" in found["model.preprocess"]({"text": "a text"})["messages"][0]["content"]
    made = found["model.postprocess"]({"generated_text": "short", "num_generated_tokens": 1})
    assert made.keys() == asked.models[0].outputs.keys()


def test_published_rows_are_read_as_shown(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = snippets("import json, os, duckdb")
    lake.ready(name="flight-delays")
    lake.run(engine=LOCAL)
    monkeypatch.chdir(lake.out)
    names = shown(code)
    counts = [len(each) for each in names.values() if isinstance(each, pd.DataFrame)]
    assert counts == [8000]


def test_a_delta_table_is_read_as_shown(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = snippets("import deltalake")
    lake.ready(output__tables=[{"delta": "tables/delays"}])
    lake.run(engine=LOCAL)
    monkeypatch.chdir(lake.folder)
    assert [len(each) for each in shown(code).values() if isinstance(each, pd.DataFrame)] == [8000]


NOT_HERE: dict[str, str] = {
    "spark.": "needs a JVM; test_readers.py says which readers are tried",
    'duckdb.sql("select * from delta_scan': "fetches an extension of DuckDB's",
}
"""Beginnings of lines of blocks that are not run."""


def shown(code: str) -> dict[str, Any]:
    """What a block leaves, its lines of one expression by their numbers."""
    names: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for number, line in enumerate(each for each in code.splitlines() if each and not each.startswith(tuple(NOT_HERE))):
        try:
            program = compile(line, "block", "eval")
        except SyntaxError:
            exec(line, names)
        else:
            found[str(number)] = eval(program, names)
    return found
