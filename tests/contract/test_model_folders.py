"""Folders of transformers models: what is refused, in a sentence that names `model.path`, and what is never done."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from lazily import lazily, skip_without
from modeljobs import model_job
from nightjar.inference.engine import LOCAL
from nightjar.inference.errors import JobError
from nightjar.inference.identity import snapshots
from nightjar.inference.identity.identity import fix
from nightjar.inference.identity.unpacking import place_model
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import FRAMEWORKS
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.storage.lake import LakeStorage
from predicting import loaded_by_looking
from support import Lake
from textmodels import WIDTH, direct, save_model, save_recipe, save_tokenizer, sentences, text_job

skip_without("tokenizers", reason="pip install 'nightjar-batch[transformers]'")

torch = lazily("torch")
load_file = lazily("safetensors.torch", "load_file")
save_file = lazily("safetensors.torch", "save_file")

TASKS: dict[str, dict[str, Any]] = {
    "embed": {"outputs": {"vector": f"float32[{WIDTH}]"}},
    "text-classification": {"outputs": {"label": "string"}},
    "token-classification": {"outputs": {"entities": "list<string>"}},
    "zero-shot": {"outputs": {"label": "string"}, "options": {"labels": ["cat"]}},
}
each_task = pytest.mark.parametrize("uses", TASKS)


def test_every_task_on_texts_is_tried_here() -> None:
    assert set(TASKS) == {name for name, framework in FRAMEWORKS.items() if framework.packs}


def task_job(folder: Path, uses: str) -> Job:
    return text_job(folder, uses=uses, **TASKS[uses])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_recipe(tmp_path_factory.mktemp("models") / "model")


def change(path: Path, key: str, value: Any) -> None:
    content = json.loads(path.read_text())
    content[key] = value
    path.write_text(json.dumps(content))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def without_tokenizer(folder: Path) -> None:
    for each in folder.glob("*token*"):
        each.unlink()


def without_weights(folder: Path, name: str) -> None:
    held = load_file(folder / "model.safetensors")
    held.pop(name)
    save_file(held, folder / "model.safetensors", {"format": "pt"})


def with_other_shape(folder: Path) -> None:
    held = load_file(folder / "model.safetensors")
    held["embeddings.word_embeddings.weight"] = torch.zeros(7, WIDTH)
    save_file(held, folder / "model.safetensors", {"format": "pt"})


Damage = Callable[[Path], Any]
LOOKED: dict[str, tuple[Damage, str]] = {
    "no folder": (shutil.rmtree, r"is not there; the embed adapter needs a model's folder: write one with model\.save"),
    "no config": (lambda at: (at / "config.json").unlink(), r"/config\.json cannot be read: No such file"),
    "config cut": (lambda at: cut(at / "config.json"), r"/config\.json cannot be read: "),
    "no model": (lambda at: (at / "config.json").write_text("{}"), r"/config\.json names no model_type"),
    "no tokenizer": (without_tokenizer, r"has no tokenizer\.json, so texts cannot be read for this model; save its"),
    "modules cut": (lambda at: cut(at / "modules.json"), r"/modules\.json cannot be read: "),
    "modules of another kind": (
        lambda at: (at / "modules.json").write_text("{}"),
        r"/modules\.json cannot be read: it holds no list$",
    ),
    "no pooling": (lambda at: shutil.rmtree(at / "1_Pooling"), r"/1_Pooling/config\.json cannot be read: No such file"),
    "a strange pooling": (
        lambda at: change(at / "1_Pooling/config.json", "pooling_mode_max_tokens", True),
        r"asks for the pooling mean and max, and the embed adapter knows mean, cls, max, last, one at a time; to use",
    ),
    "no pooling at all": (
        lambda at: change(at / "1_Pooling/config.json", "pooling_mode_mean_tokens", False),
        r"asks for the pooling of nothing",
    ),
}


@pytest.mark.parametrize("what", LOOKED)
def test_a_folder_that_is_no_whole_model_is_found_before_the_library_is_imported(
    whole: Path, tmp_path: Path, what: str
) -> None:
    """`nightjar check` finds it, and so does each node."""
    damage, sentence = LOOKED[what]
    damage(Path(shutil.copytree(whole, tmp_path / "model")))
    job = text_job(tmp_path)
    for look in (adapter_of(model_job(job)).inspect, adapter_of(model_job(job)).load):
        with pytest.raises(JobError, match=rf"^model\.path: \S*/model.*{sentence}"):
            look(model_job(job), str(job.models[0].path))


LOADED: dict[str, tuple[Damage, str]] = {
    "no weights": (
        lambda at: (at / "model.safetensors").unlink(),
        r"transformers cannot load \S*/model: OSError: Error no file named model\.safetensors",
    ),
    "weights cut": (
        lambda at: cut(at / "model.safetensors"),
        r"transformers cannot load \S*/model: SafetensorError: ",
    ),
    "weights empty": (
        lambda at: (at / "model.safetensors").write_bytes(b""),
        r"transformers cannot load \S*/model: SafetensorError: ",
    ),
    "weights of text": (
        lambda at: (at / "model.safetensors").write_text("version https"),
        r"transformers cannot load \S*/model: SafetensorError: ",
    ),
    "a weight is missing": (
        lambda at: without_weights(at, "encoder.layer.1.output.dense.weight"),
        r"has no weights for encoder\.layer\.1\.output\.dense\.weight of BertModel; it is not a model for embed, or",
    ),
    "a weight of another shape": (with_other_shape, r"transformers cannot load \S*/model: "),
    "a model that the library does not know": (
        lambda at: change(at / "config.json", "model_type", "bertolt"),
        r"transformers cannot load \S*/model: ValueError: .*bertolt",
    ),
    "a tokenizer cut": (
        lambda at: cut(at / "tokenizer.json"),
        r"transformers cannot load the tokenizer of \S*/model: ",
    ),
}


@pytest.mark.parametrize("what", LOADED)
def test_a_folder_that_the_library_cannot_load_is_said_with_its_error(whole: Path, tmp_path: Path, what: str) -> None:
    """Weights that are missing, too, which the library itself fills with random numbers."""
    damage, sentence = LOADED[what]
    damage(Path(shutil.copytree(whole, tmp_path / "model")))
    job = text_job(tmp_path)
    with pytest.raises(JobError, match=rf"^model\.path: .*{sentence}"):
        adapter_of(model_job(job)).load(model_job(job), str(job.models[0].path))


def test_a_tokenizer_without_padding_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    without_tokenizer(tmp_path / "model")
    save_tokenizer(tmp_path / "model", pad_token=None)
    with pytest.raises(JobError, match=r"^model\.path: the tokenizer of \S*/model has no padding token"):
        adapter_of(model_job(job := text_job(tmp_path))).load(model_job(job), str(job.models[0].path))


def test_weights_that_no_vector_needs_may_be_missing(whole: Path, tmp_path: Path) -> None:
    """Many encoders are saved without what only their training needed."""
    shutil.copytree(whole, tmp_path / "model")
    for name in ("pooler.dense.weight", "pooler.dense.bias"):
        without_weights(tmp_path / "model", name)
    adapter_of(model_job(job := text_job(tmp_path))).load(model_job(job), str(job.models[0].path))


@pytest.mark.parametrize(
    ("kinds", "sentence"),
    [
        (["Transformer", "Pooling", "Dense"], "is made of Transformer, Pooling, Dense, and the embed adapter computes"),
        (["StaticEmbedding"], "is made of StaticEmbedding, and"),
        ([], "is made of nothing, and"),
    ],
)
def test_modules_that_are_not_computed_are_named(whole: Path, tmp_path: Path, kinds: list[str], sentence: str) -> None:
    shutil.copytree(whole, tmp_path / "model")
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": ""} for kind in kinds]
    (tmp_path / "model/modules.json").write_text(json.dumps(modules))
    with pytest.raises(JobError, match=rf"^model\.path: \S*/model {sentence}"):
        adapter_of(model_job(job := text_job(tmp_path))).inspect(model_job(job), str(job.models[0].path))


def test_modules_outside_of_the_folder_are_refused(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "model")
    modules = [{"type": f"m.{kind}", "path": "../other"} for kind in ("Transformer", "Pooling")]
    (tmp_path / "model/modules.json").write_text(json.dumps(modules))
    with pytest.raises(JobError, match=r"has its Transformer in '\.\./other', outside of the folder$"):
        adapter_of(model_job(job := text_job(tmp_path))).inspect(model_job(job), str(job.models[0].path))


# ---- what is never done ---------------------------------------------------------------------------------------


def test_of_pickled_weights_only_tensors_are_unpickled(whole: Path, tmp_path: Path) -> None:
    """So they cannot run code, as test_hostile_models.py tries."""
    shutil.copytree(whole, tmp_path / "model")
    safe = tmp_path / "model/model.safetensors"
    torch.save(load_file(safe), tmp_path / "model/pytorch_model.bin")
    safe.unlink()
    job, texts = text_job(tmp_path), sentences(10)
    found = load_scorer(model_job(job), job.models[0].path)(pa.table({"text": texts}))["vector"]
    np.testing.assert_allclose(found.flatten().to_numpy().reshape(-1, WIDTH), direct(whole, texts), atol=1e-5)
    torch.save({"embeddings.word_embeddings.weight": Path(tmp_path)}, tmp_path / "model/pytorch_model.bin")
    with pytest.raises(JobError, match=r"^model\.path: transformers cannot load .*model: "):
        adapter_of(model_job(job)).load(model_job(job), str(job.models[0].path))


def test_weights_in_several_files_are_found_by_their_index(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "model")
    held = load_file(tmp_path / "model/model.safetensors")
    (tmp_path / "model/model.safetensors").unlink()
    places = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(held)}
    for file in set(places.values()):
        save_file(
            {name: held[name] for name in held if places[name] == file}, tmp_path / "model" / file, {"format": "pt"}
        )
    (tmp_path / "model/model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    job, texts = text_job(tmp_path), sentences(10)
    found = load_scorer(model_job(job), job.models[0].path)(pa.table({"text": texts}))["vector"]
    np.testing.assert_allclose(found.flatten().to_numpy().reshape(-1, WIDTH), direct(whole, texts), atol=1e-5)
    (tmp_path / "model/model-1.safetensors").unlink()
    with pytest.raises(JobError, match=r"^model\.path: transformers cannot load \S*/model: .*model-1\.safetensors"):
        adapter_of(model_job(job)).load(model_job(job), str(job.models[0].path))


def test_code_in_the_folder_is_never_run(whole: Path, tmp_path: Path) -> None:
    """Neither where the library knows the kind of model without it, nor where only the code does."""
    shutil.copytree(whole, tmp_path / "model")
    touched = tmp_path / "touched"
    (tmp_path / "model/modeling.py").write_text(f"open({str(touched)!r}, 'w')\n")
    code = {
        "AutoConfig": "modeling.Config",
        "AutoModel": "modeling.Model",
        "AutoTokenizer": ["modeling.T", "modeling.T"],
    }
    change(tmp_path / "model/config.json", "auto_map", code)
    adapter_of(model_job(job := text_job(tmp_path))).load(model_job(job), str(job.models[0].path))
    change(tmp_path / "model/config.json", "model_type", "mine")
    with pytest.raises(JobError, match=r"^model\.path: transformers cannot load \S*/model: "):
        adapter_of(model_job(job)).load(model_job(job), str(job.models[0].path))
    assert not touched.exists()


OFFLINE = """
import sys

def hook(event, args):
    if event in {"socket.connect", "socket.getaddrinfo", "socket.sendto"}:
        print(event, args)

sys.addaudithook(hook)
import pyarrow as pa
from nightjar.inference.job.file import load_job
from nightjar.inference.job.modeljob import model_jobs
from nightjar.inference.predictors import load_scorer
job = load_job(sys.argv[1])
print(len(load_scorer(model_jobs(job)[0], job.models[0].path)(pa.table({"text": ["a cat"]}))["vector"]))
"""


def test_no_network_is_asked_and_nothing_is_printed(whole: Path, tmp_path: Path) -> None:
    """For a folder there is nothing to ask, whatever the environment says of the hub."""
    shutil.copytree(whole, tmp_path / "model")
    write_job(tmp_path)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, tmp_path / "job.yaml"], capture_output=True, text=True, env=environment
    )
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)
    assert not (tmp_path / "home").exists()


def write_job(folder: Path, uses: str = "embed") -> None:
    named = {"name", "input", "output", "only"}
    content = task_job(folder, uses).model_dump(mode="json", by_alias=True, include=named)
    content["input"].pop("wait")
    (folder / "job.yaml").write_text(yaml.safe_dump(content))


def test_looking_at_job_and_folder_imports_no_framework(whole: Path, tmp_path: Path) -> None:
    """Commands that only look must not wait for it."""
    for uses in TASKS:
        shutil.copytree(whole, tmp_path / uses / "model")
        write_job(tmp_path / uses, uses)
    looked, warmed = loaded_by_looking(*(tmp_path / uses / "job.yaml" for uses in TASKS))
    assert not {"transformers", "tokenizers", "torch", "pandas"} & looked
    assert {"transformers", "torch"} <= warmed[0]


# ---- a night --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [0, 1 << 30], ids=["linked", "copied"])
def test_large_weights_are_read_where_they_are(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: int
) -> None:
    shutil.copytree(whole, tmp_path / "model")
    monkeypatch.setattr(snapshots, "COPIED_BYTES", copied)
    job, texts = text_job(tmp_path), sentences(10)
    path, _ = place_model(LakeStorage(), fix(LakeStorage(), job).models[0], tmp_path / "cache", str(job.models[0].path))
    found = load_scorer(model_job(job), path)(pa.table({"text": texts}))["vector"]
    np.testing.assert_allclose(found.flatten().to_numpy().reshape(-1, WIDTH), direct(whole, texts), atol=1e-5)


@pytest.mark.system
def test_a_night_is_published(whole: Path, lake: Lake) -> None:
    """On the local engine, from the folder to what readers see, with the versions in its manifest."""
    shutil.copytree(whole, lake.folder / "model")
    lake.write_files(files=2, rows=300)
    lake.write_job(
        model__uses="embed",
        model__path="model/",
        model__features=["name"],
        model__outputs={"vector": f"float32[{WIDTH}]"},
        model__batch_size="auto",
    )
    ran = lake.run(engine=LOCAL)
    published = lake.published()
    assert len(published) == 600
    some = published.iloc[[0, 299, 300, 599]]
    wanted = direct(whole, some["name"].tolist())
    np.testing.assert_allclose(np.stack(some["vector"].tolist()), wanted, atol=1e-5)
    manifest = json.loads((lake.out / ran.verdict.published.manifest).read_bytes())
    assert manifest["packages"] == {name: version(name) for name in ("transformers", "tokenizers")}
    assert set(manifest["model"]["files"]) >= {"model.safetensors", "tokenizer.json", "modules.json"}


# ---- each task ------------------------------------------------------------------------------------------------


@each_task
@pytest.mark.parametrize("what", ["no folder", "no config", "no tokenizer"])
def test_every_task_says_what_a_folder_lacks(whole: Path, tmp_path: Path, uses: str, what: str) -> None:
    damage, sentence = LOOKED[what]
    damage(Path(shutil.copytree(whole, tmp_path / "model")))
    job = task_job(tmp_path, uses)
    for look in (adapter_of(model_job(job)).inspect, adapter_of(model_job(job)).load):
        with pytest.raises(JobError, match=rf"^model\.path: \S*/model.*{sentence.replace('embed', uses)}"):
            look(model_job(job), str(job.models[0].path))


@each_task
def test_an_option_that_a_task_does_not_know_is_refused(whole: Path, uses: str) -> None:
    section = {**TASKS[uses], "options": {**TASKS[uses].get("options", {}), "batch_token": 9}}
    with pytest.raises(JobError, match=rf"^model\.options\.batch_token: the {uses} adapter .* mean 'batch_tokens'\?$"):
        check_keys(text_job(whole.parent, uses=uses, **section))


@each_task
def test_what_counts_beyond_job_and_folder_are_the_libraries_that_compute(whole: Path, uses: str) -> None:
    job = task_job(whole.parent, uses)
    assert adapter_of(model_job(job)).fingerprint(model_job(job)) == {
        name: version(name) for name in ("transformers", "tokenizers")
    }


@each_task
def test_a_missing_extra_says_which_to_install(whole: Path, monkeypatch: pytest.MonkeyPatch, uses: str) -> None:
    job = task_job(whole.parent, uses)
    monkeypatch.setitem(sys.modules, "transformers", None)  # as Python has it of a module that is not there
    message = rf"^model\.uses: the {uses} adapter needs transformers; install it: pip install 'nightjar-batch\[transfor"
    with pytest.raises(JobError, match=message):
        load_scorer(model_job(job), job.models[0].path)
