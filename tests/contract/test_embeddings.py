"""`uses: embed` gives each text the vector that transformers itself computes of it alone, however it packs them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lazily import lazily, skip_without
from modeljobs import model_job
from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.predictors.batches import to_batch
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.microbatches import drained
from nightjar.inference.scoring.scored_rows import ScoredRows
from predicting import score_table
from textmodels import (
    POSITIONS,
    WIDTH,
    bert_config,
    direct,
    save_model,
    save_recipe,
    save_tokenizer,
    sentences,
    text_job,
    transformers,
)

skip_without("tokenizers", reason="pip install 'nightjar-batch[transformers]'")

torch = lazily("torch")

TEXTS = sentences(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, which has the files of sentence-transformers, and `plain`, which has none."""
    made = tmp_path_factory.mktemp("models")
    save_recipe(made / "model")
    save_model(made / "plain")
    return made


def vectors(job: Job, texts: Any) -> np.ndarray[Any, Any]:
    column = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    found = load_scorer(model_job(job), job.models[0].path)(pa.table({"text": column}))["vector"]
    return np.asarray(found.flatten()).reshape(-1, WIDTH)


def check_close(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    norms = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    assert ((found * wanted).sum(1) / norms > 0.99999).all()


# ---- the same vectors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, 1, 300])
def test_each_text_has_the_vector_that_it_has_alone(folder: Path, rows: int) -> None:
    """In the order of the rows, which is not that of their lengths."""
    found = vectors(text_job(folder), TEXTS[:rows])
    assert found.shape == (rows, WIDTH)
    if rows:
        check_close(found, direct(folder / "model", TEXTS[:rows]))
        turned = vectors(text_job(folder), TEXTS[:rows][::-1])
        check_close(turned, found[::-1])


@pytest.mark.parametrize("batch_tokens", [1, 7, 64, 100_000])
def test_packing_changes_no_vector(folder: Path, batch_tokens: int) -> None:
    check_close(
        vectors(text_job(folder, options={"batch_tokens": batch_tokens}), TEXTS), direct(folder / "model", TEXTS)
    )


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_job_may_say_how_vectors_are_made(folder: Path, pooling: str, normalize: bool) -> None:
    """Of a folder with the files of sentence-transformers, and of one without."""
    wanted = direct(folder / "plain", TEXTS[:40], pooling, normalize)
    for path in ("plain", "model"):
        job = text_job(folder, path, options={"pooling": pooling, "normalize": normalize})
        check_close(vectors(job, TEXTS[:40]), wanted)


def test_a_folder_without_a_recipe_averages_and_does_not_normalise(folder: Path) -> None:
    check_close(vectors(text_job(folder, "plain"), TEXTS[:40]), direct(folder / "plain", TEXTS[:40], "mean", False))


@pytest.mark.parametrize(
    ("pooling", "name"), [("mean_tokens", "mean"), ("cls_token", "cls"), ("max_tokens", "max"), ("lasttoken", "last")]
)
@pytest.mark.parametrize("inner", ["", "0_Transformer"])
def test_the_files_of_sentence_transformers_decide(tmp_path: Path, pooling: str, name: str, inner: str) -> None:
    """The pooling, whether vectors have length 1, and where a text is cut."""
    save_recipe(tmp_path / "model", pooling, normalize=inner == "", inner=inner, max_seq_length=9)
    wanted = direct(tmp_path / "model" / inner, TEXTS[:60], name, normalize=inner == "", max_length=9)
    check_close(vectors(text_job(tmp_path), TEXTS[:60]), wanted)


def test_newer_files_of_sentence_transformers_name_the_pooling(tmp_path: Path) -> None:
    save_recipe(tmp_path / "model", normalize=False)
    (tmp_path / "model/1_Pooling/config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    check_close(vectors(text_job(tmp_path), TEXTS[:20]), direct(tmp_path / "model", TEXTS[:20], "last", False))


def test_a_long_text_is_cut_at_what_the_model_takes(folder: Path) -> None:
    """Or earlier, where the job says so; never beyond the model's positions."""
    long = " ".join(["cat river"] * 200)
    check_close(vectors(text_job(folder), [long]), direct(folder / "model", [long]))
    shorter = text_job(folder, options={"max_length": 11})
    check_close(vectors(shorter, [long]), direct(folder / "model", [long], max_length=11))
    message = rf"^model\.options\.max_length: 65, and .*/model takes at most {POSITIONS} tokens$"
    with pytest.raises(JobError, match=message):
        vectors(text_job(folder, options={"max_length": 65}), [long])


def test_positions_that_are_no_texts_are_not_counted(tmp_path: Path) -> None:
    """RoBERTa counts from behind its padding token, so it takes fewer tokens than it has positions."""
    torch.manual_seed(5)
    config = bert_config().to_dict() | {"model_type": "roberta", "pad_token_id": 0}
    transformers.RobertaModel(transformers.RobertaConfig(**config)).save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model", model_max_length=None)
    long = " ".join(["cat river"] * 200)
    wanted = direct(tmp_path / "model", [long], normalize=False, max_length=POSITIONS - 1)
    check_close(vectors(text_job(tmp_path), [long]), wanted)


def test_a_prompt_stands_before_each_text(tmp_path: Path) -> None:
    """The job's, or the folder's own default."""
    save_recipe(tmp_path / "model")
    wanted = direct(tmp_path / "model", [f"the old {text}" for text in TEXTS[:20]])
    check_close(vectors(text_job(tmp_path, options={"prompt": "the old "}), TEXTS[:20]), wanted)
    named = {"prompts": {"query": "the old ", "other": "red"}, "default_prompt_name": "query"}
    (tmp_path / "model/config_sentence_transformers.json").write_text(json.dumps(named))
    check_close(vectors(text_job(tmp_path), TEXTS[:20]), wanted)
    without = text_job(tmp_path, options={"prompt": ""})
    check_close(vectors(without, TEXTS[:20]), direct(tmp_path / "model", TEXTS[:20]))
    (tmp_path / "model/1_Pooling/config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True, "include_prompt": False})
    )
    with pytest.raises(JobError, match=r"^model\.path: .* leaves the prompt 'the old ' out of its pooling"):
        adapter_of(model_job(job := text_job(tmp_path))).inspect(model_job(job), str(job.models[0].path))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_smaller_dtype_gives_nearly_the_same_vectors(folder: Path, dtype: str) -> None:
    found = vectors(text_job(folder, options={"dtype": dtype}), TEXTS[:40])
    wanted = direct(folder / "model", TEXTS[:40])
    assert 1e-7 < np.abs(found - wanted).max() < 0.05


# ---- batches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_kind_of_text_column_is_read(folder: Path, kind: pa.DataType) -> None:
    check_close(vectors(text_job(folder), pa.array(TEXTS[:9]).cast(kind)), direct(folder / "model", TEXTS[:9]))


@pytest.mark.parametrize("form", ["numpy", "pandas", "pyarrow"])
def test_a_preprocess_may_make_the_text(folder: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    (folder / "shout.py").write_text(
        "import pyarrow as pa\n"
        "def both(batch):\n"
        "    texts = [f'{a} {b}' for a, b in zip(batch['a'], batch['b'])]\n"
        "    return pa.table({'text': texts}) if isinstance(batch, pa.Table) else {'text': texts}\n"
        if form != "pandas"
        else "def both(batch):\n    return (batch['a'] + ' ' + batch['b']).to_frame('text')\n"
    )
    sys.modules.pop("shout", None)
    job = text_job(folder, options={"batch_format": form}, job={"preprocess": "shout:both"})
    found = load_scorer(model_job(job), job.models[0].path)(pa.table({"a": TEXTS[:9], "b": TEXTS[9:18]}))["vector"]
    wanted = direct(folder / "model", [f"{a} {b}" for a, b in zip(TEXTS[:9], TEXTS[9:18], strict=True)])
    check_close(np.asarray(found.flatten()).reshape(-1, WIDTH), wanted)


def test_to_prepare_and_then_to_predict_is_the_whole(folder: Path) -> None:
    """All batches may be prepared before the first is predicted; batches of other kinds give the same."""
    job = text_job(folder)
    predictor = adapter_of(model_job(job)).load(model_job(job), job.models[0].path)
    assert predictor.device == "cpu"
    tables = [pa.table({"text": sentences(20, seed=seed)}) for seed in range(3)]
    prepared = [predictor.prepare(table) for table in tables]
    whole = load_scorer(model_job(job), job.models[0].path)
    for table, each in zip(tables, prepared, strict=True):
        found = predictor.predict(each)["vector"]
        np.testing.assert_array_equal(found, whole(table)["vector"].flatten().to_numpy().reshape(-1, WIDTH))
        again = predictor.predict(predictor.prepare(to_batch(table, "pandas")))["vector"]
        np.testing.assert_array_equal(found, again)


def test_two_threads_may_prepare_and_predict_at_once(folder: Path) -> None:
    job = text_job(folder, options={"batch_tokens": 50})
    scorer = load_scorer(model_job(job), job.models[0].path)
    tables = [pa.table({"text": sentences(40, seed=seed)}) for seed in range(12)]
    alone = [scorer(table)["vector"] for table in tables]
    with ThreadPoolExecutor(2) as threads:
        for wanted, found in zip(alone, threads.map(scorer, tables), strict=True):
            np.testing.assert_array_equal(found["vector"].flatten(), wanted.flatten())


def scored(job: Job, table: pa.Table, rows: int) -> ScoredRows:
    return drained(
        score_table(
            table,
            load_scorer(model_job(job), job.models[0].path),
            BatchSize(rows),
            job.models[0].output_types(),
            budget=5,
        )
    )


def test_a_null_costs_its_row_and_an_empty_text_none(folder: Path) -> None:
    done = scored(text_job(folder), pa.table({"text": ["a cat", None, "", "the dog"]}), 4)
    assert [(each.row, each.error, each.message) for each in done.failures] == [
        (
            1,
            "ValueError",
            "feature 'text' has a null, which is no text; to score it as one, write the text in a preprocess",
        )
    ]
    found = np.asarray(done.outputs["vector"].combine_chunks().flatten()).reshape(-1, WIDTH)
    check_close(found, direct(folder / "model", ["a cat", "", "the dog"]))


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
def test_whatever_stands_for_a_missing_text_in_pandas_is_a_null(folder: Path, missing: Any) -> None:
    job = text_job(folder)
    predictor = adapter_of(model_job(job)).load(model_job(job), job.models[0].path)
    with pytest.raises(ValueError, match="feature 'text' has a null, which is no text"):
        predictor.prepare(pd.DataFrame({"text": pd.Series(["a cat", missing], dtype=object)}))


# ---- how the model is called ----------------------------------------------------------------------------------


class Calls:
    """The calls of models in this process: rows and tokens of each. Above `fits` tokens memory runs out."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []
        self.fits = 1 << 60

    def __call__(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        if isinstance(module, transformers.BertModel):
            rows, tokens, _ = output.last_hidden_state.shape
            self.shapes.append((rows, tokens))
            if rows * tokens > self.fits:
                raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.fixture
def calls() -> Iterator[Calls]:
    found = Calls()
    handle = torch.nn.modules.module.register_module_forward_hook(found)
    yield found
    handle.remove()


def test_texts_of_one_length_go_together_up_to_the_budget(folder: Path, calls: Calls) -> None:
    """Rows × longest is at most `batch_tokens`, but for a single text that is longer; little of it is padding."""
    vectors(text_job(folder, options={"batch_tokens": 32}), TEXTS)
    assert sum(rows for rows, _ in calls.shapes) == len(TEXTS)
    assert all(rows * tokens <= 32 or rows == 1 for rows, tokens in calls.shapes)
    assert any(tokens > 32 for _, tokens in calls.shapes)
    held = sum(len(text.split()) + 2 for text in TEXTS)
    assert sum(rows * tokens for rows, tokens in calls.shapes) < 1.1 * held
    assert [tokens for _, tokens in calls.shapes] == sorted((tokens for _, tokens in calls.shapes), reverse=True)


def test_a_fixed_batch_size_is_exactly_the_rows_of_a_call(folder: Path, calls: Calls) -> None:
    """Unless the job also says how many tokens a call may have."""
    table = pa.table({"text": TEXTS[:20]})
    scored(text_job(folder, batch_size=8), table, 8)
    assert [rows for rows, _ in calls.shapes] == [8, 8, 4]
    calls.shapes.clear()
    scored(text_job(folder, batch_size=8, options={"batch_tokens": 30}), table, 8)
    assert all(rows * tokens <= 30 or rows == 1 for rows, tokens in calls.shapes)


@pytest.mark.parametrize("section", [{}, {"batch_size": 300}], ids=["auto", "fixed"])
def test_a_call_that_runs_out_of_memory_halves_the_micro_batch_once(
    folder: Path, calls: Calls, section: dict[str, Any]
) -> None:
    """No row is lost, and the size stays small."""
    calls.fits = 200
    job = text_job(folder, **section)
    scorer = load_scorer(model_job(job), job.models[0].path)
    wanted = direct(folder / "model", TEXTS)
    size = BatchSize(300)
    for again in (False, True):
        calls.shapes.clear()
        done = drained(score_table(pa.table({"text": TEXTS}), scorer, size, job.models[0].output_types()))
        check_close(np.asarray(done.outputs["vector"].combine_chunks().flatten()).reshape(-1, WIDTH), wanted)
        refused = [shape for shape in calls.shapes if shape[0] * shape[1] > calls.fits]
        assert len(refused) == 0 if again else 1 <= len(refused) <= 8
    assert 1 < size.most == size.forced < 150


def test_a_text_that_does_not_fit_alone_costs_its_row_and_no_other_its_batch(folder: Path, calls: Calls) -> None:
    """Afterwards as much as before goes into a call."""
    calls.fits = 60
    long = " ".join(["cat"] * 62)
    job = text_job(folder, options={"batch_tokens": 60})
    table = pa.table({"text": [*TEXTS[:50], long, *TEXTS[50:100]]})
    scorer, size = load_scorer(model_job(job), job.models[0].path), BatchSize(128)
    done = drained(score_table(table, scorer, size, job.models[0].output_types()))
    assert [(each.row, each.error) for each in done.failures] == [(50, "OutOfMemoryError")]
    found = np.asarray(done.outputs["vector"].combine_chunks().flatten()).reshape(-1, WIDTH)
    check_close(found, direct(folder / "model", TEXTS[:100]))
    assert (size.most, size.forced) == (128, 0)
    shapes = []
    for each in (scorer, load_scorer(model_job(job), job.models[0].path)):
        calls.shapes.clear()
        each(table.slice(0, 50))
        shapes.append(sorted(calls.shapes))
    assert shapes[0] == shapes[1]
    assert max(rows for rows, _ in shapes[0]) > 4
    assert all(rows * tokens <= 60 for rows, tokens in shapes[0])


# ---- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outputs", "sentence"),
    [
        ({"vector": "float32"}, r"^the model returned an array of shape \(1, 32\) .*declares 1: vector$"),
        ({"vector": "float32[32]", "b": "string"}, r"^the model returned an array of shape .*declares 2: vector, b$"),
        ({"vector": "float32[384]"}, r"^output 'vector' does not fit float32\[384\]: .*\[32\].*\[384\]"),
    ],
)
def test_an_embedding_is_one_output_of_a_vector_of_the_model_s_width(
    folder: Path, outputs: dict[str, str], sentence: str
) -> None:
    with pytest.raises(OutputInvalid, match=sentence):
        vectors(text_job(folder, outputs=outputs), TEXTS[:1])
    found = load_scorer(model_job(job := text_job(folder, outputs={"vector": "list<float32>"})), job.models[0].path)
    assert len(found(pa.table({"text": ["a"]}))["vector"][0]) == WIDTH


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_token": 5}, r"^model\.options\.batch_token: the embed adapter .*did you mean 'batch_tokens'\?$"),
        ({"batch_tokens": 0}, r"^model\.options\.batch_tokens: write a number of tokens from 1 on, not 0$"),
        ({"max_length": True}, r"^model\.options\.max_length: write a number of tokens from 1 on, not True$"),
        ({"dtype": "int8"}, r"^model\.options\.dtype: 'int8' is not one of float32, float16, bfloat16$"),
        ({"pooling": "means"}, r"^model\.options\.pooling: 'means' is not one of mean, .*; did you mean 'mean'\?$"),
        ({"normalize": "yes"}, r"^model\.options\.normalize: write true or false, not 'yes'$"),
        ({"prompt": 3}, r"^model\.options\.prompt: write a text, not 3$"),
    ],
)
def test_options_that_make_no_sense_are_refused_by_their_names(
    folder: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(JobError, match=sentence):
        check_keys(text_job(folder, options=options))


def test_the_feature_is_one_column_of_text(folder: Path) -> None:
    adapter = adapter_of(model_job(text_job(folder)))
    schema = pa.schema([("a", pa.string()), ("n", pa.int64())])
    for features in (None, ["a", "n"]):
        with pytest.raises(
            JobError, match=r"^model\.features: the embed adapter takes one column of text; say which of a, n$"
        ):
            adapter.check_columns(model_job(text_job(folder, features=features)), schema)
    with pytest.raises(JobError, match=r"^model\.features: 'n' is int64, and the embed adapter takes text only; "):
        adapter.check_columns(model_job(text_job(folder, features=["n"])), schema)
    adapter.check_columns(model_job(text_job(folder, features=["a"])), schema)
