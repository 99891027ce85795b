"""`uses: text-classification` and `zero-shot` give each text the scores of the library's own pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazily import lazily, skip_without
from modeljobs import model_job
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.microbatches import drained
from predicting import score_table
from textmodels import POSITIONS, SPECIAL, WIDTH, WORDS, save_model, save_tokenizer, sentences, text_job, transformers

skip_without("tokenizers", reason="pip install 'nightjar-batch[transformers]'")

torch = lazily("torch")

TEXTS = sentences(60)
LABELS = {0: "bad", 1: "so so", 2: "good"}
INFERENCE = {0: "contradiction", 1: "neutral", 2: "entailment"}
ALL = {"label": "string", "score": "float32", "scores": "float32[3]", "good": "float64"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier in `model`, one of a single number in `one`, and a model of inference in `nli`."""
    made = tmp_path_factory.mktemp("models")
    kind = "BertForSequenceClassification"
    save_model(made / "model", kind, id2label=LABELS)
    save_model(made / "several", kind, id2label=LABELS, problem_type="multi_label_classification")
    save_model(made / "one", kind, num_labels=1)
    save_model(made / "regression", kind, num_labels=1, problem_type="regression")
    for name, labels in ("nli", INFERENCE), ("turned", {0: "Entailment", 1: "neutral", 2: "contradiction"}):
        save_model(made / name, kind, id2label=labels, label2id={label: place for place, label in labels.items()})
    return made


def made(job: Job, table: pa.Table) -> dict[str, list[Any]]:
    return {name: values.to_pylist() for name, values in load_scorer(model_job(job), job.models[0].path)(table).items()}


def classifies(folder: Path, path: str = "model", **section: Any) -> Job:
    return text_job(folder, path, **{"uses": "text-classification", "outputs": ALL, **section})


def chooses(folder: Path, path: str = "nli", **section: Any) -> Job:
    options = {"labels": ["cat", "old river"], **section.pop("options", {})}
    outputs = {"label": "string", "score": "float32", "scores": "float32[2]", "old river": "float32"}
    return text_job(folder, path, **{"uses": "zero-shot", "outputs": outputs, "options": options, **section})


def piped(task: str, path: Path, given: Any, **how: Any) -> list[Any]:
    """What the library's pipeline makes of each alone."""
    pipeline = transformers.pipeline(task, model=str(path), tokenizer=str(path), device="cpu")
    return [pipeline(each, **how) for each in given]


# ---- text-classification --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["model", "several"])
@pytest.mark.parametrize("function", [None, "softmax", "sigmoid", "none"])
def test_labels_and_scores_are_those_of_the_pipeline(folder: Path, path: str, function: str | None) -> None:
    """The best label, its score, all scores in the model's order, and that of a label by its name."""
    job = classifies(folder, path, options={"function": function, "batch_tokens": 100} if function else {})
    found = made(job, pa.table({"text": TEXTS}))
    wanted = piped("text-classification", folder / path, TEXTS, top_k=None, function_to_apply=function)
    for row, scores in enumerate(wanted):
        by_label = {each["label"]: each["score"] for each in scores}
        best = max(scores, key=lambda each: each["score"])
        assert found["label"][row] == best["label"]
        assert found["score"][row] == pytest.approx(best["score"], abs=1e-5)
        assert found["scores"][row] == pytest.approx([by_label[label] for label in LABELS.values()], abs=1e-5)
        assert found["good"][row] == pytest.approx(by_label["good"], abs=1e-5)
    assert len(set(found["label"])) > 1


@pytest.mark.parametrize("path", ["one", "regression"])
def test_a_model_of_one_number_gives_it(folder: Path, path: str) -> None:
    """As a probability, or as it is."""
    found = made(classifies(folder, path, outputs={"score": "float32"}), pa.table({"text": TEXTS}))
    wanted = [each[0]["score"] for each in piped("text-classification", folder / path, TEXTS)]
    assert found["score"] == pytest.approx(wanted, abs=1e-5)


def test_two_columns_are_read_as_pairs(folder: Path) -> None:
    job = classifies(folder, outputs={"scores": "float32[3]"}, features=["question", "answer"])
    table = pa.table({"answer": TEXTS[:20], "question": TEXTS[20:40]})
    pairs = [{"text": question, "text_pair": answer} for question, answer in zip(TEXTS[20:40], TEXTS[:20], strict=True)]
    wanted = piped("text-classification", folder / "model", pairs, top_k=None)
    for row, scores in enumerate(wanted):
        by_label = {each["label"]: each["score"] for each in scores}
        found = made(job, table.slice(row, 1))["scores"][0]
        assert found == pytest.approx([by_label[label] for label in LABELS.values()], abs=1e-5)
    job = model_job(classifies(folder, features=["a", "b", "c"]))
    message = r"^model\.features: the text-classification adapter takes 2 columns of text at most; say which of a, b, "
    with pytest.raises(JobError, match=message):
        adapter_of(job).check_columns(job, pa.schema([(name, pa.string()) for name in "abc"]))


def test_an_output_that_is_not_made_is_refused_with_those_that_are(folder: Path) -> None:
    message = (
        r"^model\.outputs: the text-classification adapter does not make 'lable'; it makes label, score, scores \(one "
        r"number for each label\), and the score of a label by its name: bad, so so, good; did you mean 'label'\?$"
    )
    with pytest.raises(JobError, match=message):
        made(classifies(folder, outputs={"lable": "string"}), pa.table({"text": TEXTS}))
    for outputs, sentence in (
        ({"label": "int64"}, r"^output 'label' is declared int64, but the predictor returned string$"),
        ({"score": "string"}, r"^output 'score' is declared string, but the predictor returned float32$"),
        ({"scores": "float32"}, r"^output 'scores' does not fit float32: it has shape \(\d+, 3\)"),
        ({"scores": "float32[2]"}, r"^output 'scores' does not fit float32\[2\]: .*\[3\].*\[2\]"),
        ({"good": "string"}, r"^output 'good' is declared string, but the predictor returned float32$"),
    ):
        with pytest.raises(OutputInvalid, match=sentence):
            made(classifies(folder, outputs=outputs), pa.table({"text": TEXTS}))
    assert (
        len(made(classifies(folder, outputs={"scores": "list<float32>"}), pa.table({"text": ["a"]}))["scores"][0]) == 3
    )


@pytest.mark.parametrize("uses", ["text-classification", "zero-shot"])
def test_an_encoder_without_a_classifier_is_refused(tmp_path: Path, uses: str) -> None:
    """The library would fill it in with random numbers."""
    save_model(tmp_path / "model")
    job = classifies(tmp_path) if uses == "text-classification" else chooses(tmp_path, "model")
    message = (
        rf"^model\.path: \S*/model has no weights for classifier\.bias, classifier\.weight of .* not a model for {uses}"
    )
    with pytest.raises(JobError, match=message):
        made(job, pa.table({"text": TEXTS}))


@pytest.mark.parametrize("pad", [0, -1, None])
def test_a_model_that_reads_the_last_token_knows_the_padding_of_its_tokenizer(tmp_path: Path, pad: int | None) -> None:
    """Whatever its configuration says of padding."""
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"vocab_size": len(SPECIAL) + len(WORDS), "max_position_embeddings": POSITIONS, "initializer_range": 0.3}
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**sizes, pad_token_id=0, id2label=LABELS)
    model = transformers.LlamaForSequenceClassification(config)
    model.config.pad_token_id = pad
    model.save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model", pad_token="[SEP]", model_input_names=["input_ids", "attention_mask"])
    job = classifies(tmp_path, outputs={"scores": "float32[3]"})
    together = made(job, pa.table({"text": TEXTS}))["scores"]
    alone = [made(job, pa.table({"text": [text]}))["scores"][0] for text in TEXTS[:20]]
    assert together[:20] == [pytest.approx(each, abs=1e-5) for each in alone]


@pytest.mark.parametrize("kind", ["FNet", "XLNet"])
def test_a_model_that_reads_padding_is_refused(tmp_path: Path, kind: str) -> None:
    sizes = {"FNet": {"num_hidden_layers": 1, "intermediate_size": 64}, "XLNet": {"n_layer": 1, "n_head": 2}}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(SPECIAL) + len(WORDS), hidden_size=WIDTH, d_model=WIDTH, id2label=LABELS, **sizes[kind]
    )
    getattr(transformers, f"{kind}ForSequenceClassification")(config).save_pretrained(tmp_path / "model")
    mask = ["attention_mask"] if kind == "XLNet" else []
    save_tokenizer(tmp_path / "model", model_input_names=["input_ids", "token_type_ids", *mask])
    with pytest.raises(
        JobError, match=rf"^model\.path: \S*/model is a {kind}ForSequenceClassification, which reads the p"
    ):
        made(classifies(tmp_path), pa.table({"text": TEXTS}))


# ---- zero-shot ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["nli", "turned"])
@pytest.mark.parametrize("several", [False, True])
def test_zero_shot_scores_are_those_of_the_pipeline(folder: Path, path: str, several: bool) -> None:
    """Wherever the model has its label of entailment, and whether or not the scores of a text are 1 together."""
    job = chooses(folder, path, options={"multi_label": several, "template": "the {} sings ."})
    found = made(job, pa.table({"text": TEXTS[:30]}))
    how = {"candidate_labels": ["cat", "old river"], "multi_label": several, "hypothesis_template": "the {} sings ."}
    for row, wanted in enumerate(piped("zero-shot-classification", folder / path, TEXTS[:30], **how)):
        by_label = dict(zip(wanted["labels"], wanted["scores"], strict=True))
        assert found["label"][row] == wanted["labels"][0]
        assert found["score"][row] == pytest.approx(wanted["scores"][0], abs=1e-5)
        assert found["scores"][row] == pytest.approx([by_label["cat"], by_label["old river"]], abs=1e-5)
        assert found["old river"][row] == pytest.approx(by_label["old river"], abs=1e-5)


def test_a_single_label_is_scored_by_itself(folder: Path) -> None:
    job = chooses(folder, options={"labels": ["cat"]}, outputs={"score": "float32"})
    wanted = piped("zero-shot-classification", folder / "nli", TEXTS[:9], candidate_labels=["cat"])
    found = made(job, pa.table({"text": TEXTS[:9]}))["score"]
    assert found == pytest.approx([each["scores"][0] for each in wanted], abs=1e-5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"labels": []},
            r"^model\.options\.labels: write a list of labels, as \[politics, sports\], each once, not \[\]$",
        ),
        ({"labels": "cat"}, r"^model\.options\.labels: write a list of labels"),
        ({"labels": ["cat", "cat"]}, r"^model\.options\.labels: write a list of labels, .* each once, not"),
        (
            {"template": "no place"},
            r"^model\.options\.template: write a sentence with one \{\}, where the label goes, not ",
        ),
        ({"template": "{} or {}"}, r"^model\.options\.template: write a sentence with one \{\}"),
        ({"multi_label": 1}, r"^model\.options\.multi_label: write true or false, not 1$"),
    ],
)
def test_options_of_zero_shot_that_make_no_sense_are_refused(
    folder: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(JobError, match=sentence):
        check_keys(chooses(folder, options=options))


def test_a_model_that_knows_no_inference_is_refused(folder: Path) -> None:
    message = (
        r"^model\.path: \S*/model has no label 'entailment' but bad, so so, good; zero-shot needs a model of natural"
    )
    with pytest.raises(JobError, match=message):
        made(chooses(folder, "model"), pa.table({"text": TEXTS}))


# ---- both -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 40])
@pytest.mark.parametrize("uses", ["text-classification", "zero-shot"])
def test_each_row_has_its_own_result_and_a_null_costs_its_row(folder: Path, uses: str, rows: int) -> None:
    job = classifies(folder) if uses == "text-classification" else chooses(folder)
    texts: list[str | None] = [*TEXTS[:rows]]
    if rows > 1:
        texts[3] = None
    scorer, types = load_scorer(model_job(job), job.models[0].path), job.models[0].output_types()
    done = drained(score_table(pa.table({"text": pa.array(texts, pa.string())}), scorer, BatchSize(16), types))
    assert [(each.row, each.error) for each in done.failures] == ([(3, "ValueError")] if rows > 1 else [])
    alone = [scorer(pa.table({"text": [text]}))["score"][0].as_py() for text in texts if text is not None]
    np.testing.assert_allclose(done.outputs["score"].to_pylist(), alone, atol=1e-5)
