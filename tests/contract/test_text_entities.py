"""`uses: token-classification` finds in each text the entities that the library's own pipeline finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazily import skip_without
from modeljobs import model_job
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer
from textmodels import save_model, sentences, text_job, transformers

skip_without("tokenizers", reason="pip install 'nightjar-batch[transformers]'")

TEXTS = [*sentences(60), "", "Cat  and RIVER, the bird!"]
LABELS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-geo-loc", 4: "I-geo-loc", 5: "MISC"}
OUTPUTS = {
    "entities": "list<string>",
    "labels": "list<string>",
    "scores": "list<float32>",
    "starts": "list<int32>",
    "ends": "list<int64>",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    save_model(made / "model", "BertForTokenClassification", id2label=LABELS)
    return made


def tags(folder: Path, **section: Any) -> Job:
    return text_job(folder, **{"uses": "token-classification", "outputs": OUTPUTS, **section})


def made(job: Job, texts: list[str]) -> dict[str, list[Any]]:
    table = pa.table({"text": pa.array(texts, pa.string())})
    return {name: values.to_pylist() for name, values in load_scorer(model_job(job), job.models[0].path)(table).items()}


@pytest.mark.parametrize("aggregation", ["simple", "none"])
def test_entities_are_those_of_the_pipeline(folder: Path, aggregation: str) -> None:
    """In their order, with the characters of the text; also where the texts are packed."""
    pipeline = transformers.pipeline(
        "token-classification",
        model=str(folder / "model"),
        tokenizer=str(folder / "model"),
        device="cpu",
        aggregation_strategy=aggregation,
    )
    found = made(tags(folder, options={"aggregation": aggregation, "batch_tokens": 60}), TEXTS)
    seen = set()
    for row, text in enumerate(TEXTS):
        wanted = pipeline(text) if text else []
        labels = [each.get("entity_group", each.get("entity")) for each in wanted]
        assert found["labels"][row] == labels
        assert found["starts"][row] == [each["start"] for each in wanted]
        assert found["ends"][row] == [each["end"] for each in wanted]
        assert found["entities"][row] == [text[each["start"] : each["end"]] for each in wanted]
        assert found["scores"][row] == pytest.approx([float(each["score"]) for each in wanted], abs=1e-5)
        seen |= set(labels)
    assert len(seen) >= 3
    joined = [
        end - start for row in zip(found["starts"], found["ends"], strict=True) for start, end in zip(*row, strict=True)
    ]
    assert (max(joined) > 9) == (aggregation == "simple"), "some entities have several words"


def test_joined_entities_are_the_default_and_no_rows_have_none(folder: Path) -> None:
    assert made(tags(folder), TEXTS) == made(tags(folder, options={"aggregation": "simple"}), TEXTS)
    assert made(tags(folder), []) == {name: [] for name in OUTPUTS}


def test_an_output_that_is_not_made_is_refused_with_those_that_are(folder: Path) -> None:
    message = r"^output 'entity' is missing; the predictor returned entities, labels, scores, starts, ends$"
    with pytest.raises(OutputInvalid, match=message):
        made(tags(folder, outputs={"entity": "list<string>"}), TEXTS)
    for outputs, sentence in (
        ({"entities": "string"}, r"^output 'entities' is declared string, but the predictor returned list<string>$"),
        ({"labels": "list<float32>"}, r"^output 'labels' is declared list<float32>, but .* returned list<string>$"),
        ({"scores": "float32[3]"}, r"^output 'scores' does not fit float32\[3\]"),
        ({"starts": "list<string>"}, r"^output 'starts' is declared list<string>, but .* returned list<int32>$"),
    ):
        with pytest.raises(OutputInvalid, match=sentence):
            made(tags(folder, outputs=outputs), TEXTS)
    with pytest.raises(JobError, match=r"^model\.options\.aggregation: 'max' is not one of simple, none$"):
        check_keys(tags(folder, options={"aggregation": "max"}))
