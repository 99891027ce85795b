"""A model file runs code only where the job trusts it: each adapter that reads files is tried with files that try to.

An attack makes the folder `proof`. Where the job trusts the file, attacks by programs do that: so they are real.
"""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazily import lazily, skip_without
from mediamodels import save_classifier, save_detector, save_listener
from modeljobs import model_job
from nightjar.inference.errors import JobError
from nightjar.inference.identity.identity import take_models
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job
from nightjar.inference.job.seams import FRAMEWORKS
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.storage.local import LocalStorage
from predicting import export
from textmodels import save_model

for needed in ("tokenizers", "PIL", "skops", "keras", "onnx", "safetensors"):
    skip_without(needed, reason="pip install 'nightjar-batch[dev]'")

torch, keras, h5py, onnx = lazily("torch"), lazily("keras"), lazily("h5py"), lazily("onnx")

TABLE = pa.table({"a": pa.array([1.0, 2.0], pa.float32()), "b": pa.array([3.0, 4.0], pa.float32())})
SECRET = np.array([7, 8], "f4").tobytes()


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.proof),)


def code(proof: Path) -> str:
    return f"__import__('os').mkdir('{proof}')"


def torch_saved(payload: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(payload, buffer)
    return buffer.getvalue()


def rezipped(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Change members of an archive. Names of members have no root folder while they are changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


# ---- programs ---------------------------------------------------------------------------------------------------


def program(change: Callable[[str, Path], str]) -> Callable[[Path, Path], None]:
    """An exported program whose model.json is changed."""

    def write(path: Path, proof: Path) -> None:
        export(path, lambda x: x[:, 0], torch.ones(4, 2))
        name = f"{path.stem}/models/model.json"
        rezipped(path, lambda members: members.update({name: change(members[name].decode(), proof).encode()}))

    return write


def expression(model: str, proof: Path) -> str:
    """sympy evaluates it."""
    return model.replace("\"Symbol('", json.dumps(f'eval("{code(proof)}") or ')[:-1] + "Symbol('")


def guards(model: str, proof: Path) -> str:
    """They become the source of a function."""
    return model.replace('"guards_code": []', f'"guards_code": ["{code(proof)} or True"]')


def placeholder(model: str, proof: Path) -> str:
    """Names stand in the source of a function."""
    name = model.partition('"as_tensor": {"name": "')[2].partition('"')[0]
    return model.replace(f'"{name}"', f'"{name}={code(proof)}"')


def samples(path: Path, proof: Path) -> None:
    export(path, lambda x: x[:, 0], torch.ones(4, 2))
    name = f"{path.stem}/data/sample_inputs/model.pt"
    rezipped(path, lambda members: members.update({name: torch_saved(((Evil(proof),), {}))}))


def script(path: Path, proof: Path) -> None:
    """It maps a file, and so makes it."""
    import torch

    class Script(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.path = str(proof)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, 0] + torch.from_file(self.path, True, 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(Script()), path)


def pickled(path: Path, proof: Path) -> None:
    path.write_bytes(pickle.dumps(Evil(proof)))


def state(path: Path, proof: Path) -> None:
    torch.save({"weight": torch.ones(1, 2), "evil": Evil(proof)}, path)


def keras_model(path: Path, *layers: Any) -> None:
    from nightjar.inference.predictors.tabular.keras import keras_on_torch

    keras_on_torch()
    taken = keras.Input((2,))
    given = keras.layers.Dense(1, name="dense")(taken)
    for layer in layers:
        given = layer(given)
    keras.Model(taken, given).save(path)


def keras_lambda(path: Path, proof: Path) -> None:
    from nightjar.inference.predictors.tabular.keras import keras_on_torch

    keras_on_torch()
    keras_model(path, keras.layers.Lambda(eval(f"lambda x: {code(proof)} or x"), output_shape=(1,)))


# ---- files that only hold data ----------------------------------------------------------------------------------


def skops(path: Path, proof: Path) -> None:
    import skops.io
    from sklearn.preprocessing import FunctionTransformer

    skops.io.dump(FunctionTransformer(os.mkdir, kw_args={"path": str(proof)}), path)


def keras_layer(layer: dict[str, Any]) -> Callable[[Path, Path], None]:
    """A layer that no Keras wrote, in place of another."""

    def write(path: Path, proof: Path) -> None:
        keras_model(path)
        module = base64.b64encode(torch_saved(Evil(proof))).decode()
        made = json.loads(json.dumps(layer).replace("PROOF", str(proof)).replace("MODULE", module))

        def change(config: str) -> str:
            held = json.loads(config)
            held["config"]["layers"].append({**made, "name": "evil", "inbound_nodes": []})
            return json.dumps(held)

        if path.suffix == ".h5":
            with h5py.File(path, "r+") as file:
                file.attrs["model_config"] = change(file.attrs["model_config"])
        else:
            name = "config.json"
            rezipped(path, lambda members: members.update({name: change(members[name].decode()).encode()}))

    return write


WRAPPER = {"module": "keras.layers", "class_name": "TorchModuleWrapper", "config": {"name": "evil", "module": "MODULE"}}
POPEN = {"module": "subprocess", "class_name": "Popen", "config": {"args": ["mkdir", "PROOF"]}}
UNSAFE = {"module": "keras.config", "class_name": "enable_unsafe_deserialization", "config": {}}


def folder_weights(save: Callable[[Path], Any]) -> Callable[[Path, Path], None]:
    def write(path: Path, proof: Path) -> None:
        save(path)
        (path / "model.safetensors").unlink()
        torch.save({"evil": Evil(proof)}, path / "pytorch_model.bin")

    return write


def folder_code(save: Callable[[Path], Any]) -> Callable[[Path, Path], None]:
    """Each file that may name code beside it does; transformers knows the kind of model only by this code."""
    autos = ("Config", "Model", "Tokenizer", "Processor", "ImageProcessor", "FeatureExtractor")

    def write(path: Path, proof: Path) -> None:
        save(path)
        (path / "evil.py").write_text(code(proof))
        named = {f"Auto{auto}": "evil.Evil" for auto in autos} | {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
        for each in path.glob("*config.json"):
            each.write_text(json.dumps({**json.loads(each.read_text()), "auto_map": named, "model_type": "evil"}))
        modules = [{"idx": 0, "name": "0", "path": "", "type": "evil.Evil"}]
        (path / "modules.json").write_text(json.dumps(modules))

    return write


@dataclass(frozen=True)
class Attack:
    """A file, and who makes it. is_program: it runs code where the job trusts it."""

    uses: str
    path: str
    write: Callable[[Path, Path], object]
    is_program: bool = False
    options: dict[str, Any] = field(default_factory=dict)


OWN_NET = {"model": "net:net"}
FOLDERS: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    "embed": (save_model, {"outputs": {"y": "float32[32]"}}),
    "text-classification": (
        lambda at: save_model(at, "BertForSequenceClassification"),
        {"outputs": {"label": "string"}},
    ),
    "token-classification": (
        lambda at: save_model(at, "BertForTokenClassification"),
        {"outputs": {"entities": "list<string>"}},
    ),
    "zero-shot": (
        lambda at: save_model(at, "BertForSequenceClassification"),
        {"outputs": {"label": "string"}, "options": {"labels": ["cat"]}},
    ),
    "image-classification": (save_classifier, {"outputs": {"label": "string"}}),
    "object-detection": (save_detector, {"outputs": {"labels": "list<string>"}}),
    "speech-recognition": (save_listener, {"outputs": {"text": "string"}}),
}
ATTACKS = {
    "pt2, expr_str": Attack("torch", "m.pt2", program(expression), is_program=True),
    "pt2, guards_code": Attack("torch", "m.pt2", program(guards), is_program=True),
    "pt2, placeholder": Attack("torch", "m.pt2", program(placeholder), is_program=True),
    "pt2, sample inputs": Attack("torch", "m.pt2", samples, is_program=True),
    "TorchScript": Attack("torch", "m.pt", script, is_program=True),
    "state dict": Attack("torch", "m.pth", state, True, OWN_NET),
    "state dict, bare pickle": Attack("torch", "m.pt", pickled, options=OWN_NET),
    "pickle as safetensors": Attack("torch", "m.safetensors", pickled, options=OWN_NET),
    "pickle": Attack("sklearn", "m.pkl", pickled, is_program=True),
    "pickle as skops": Attack("sklearn", "m.skops", pickled, is_program=True),
    "skops": Attack("sklearn", "m.skops", skops),
    "keras, Lambda": Attack("keras", "m.keras", keras_lambda, is_program=True),
    "keras h5, Lambda": Attack("keras", "m.h5", keras_lambda, is_program=True),
    **{
        f"keras {suffix}, {layer['class_name']}": Attack("keras", f"m.{suffix}", keras_layer(layer))
        for suffix in ("keras", "h5")
        for layer in (WRAPPER, POPEN, UNSAFE)
    },
    **{
        f"{uses}, pickle": Attack(uses, f"m.{suffix}", pickled)
        for uses, suffix in {"onnx": "onnx", "lightgbm": "txt", "xgboost": "ubj", "catboost": "cbm"}.items()
    },
    **{f"{uses}, weights": Attack(uses, "m", folder_weights(save)) for uses, (save, _) in FOLDERS.items()},
    **{f"{uses}, code": Attack(uses, "m", folder_code(save)) for uses, (save, _) in FOLDERS.items()},
}


def test_every_adapter_that_reads_files_is_attacked() -> None:
    """vLLM reads a folder as transformers does; its own door is the key below."""
    assert {each.uses for each in ATTACKS.values()} == FRAMEWORKS.keys() - {"openai", "vllm", "ray.data.llm"}


def job_of(folder: Path, uses: str, path: str, **model: Any) -> Job:
    model = {"outputs": {"y": "float32"}, **FOLDERS.get(uses, (None, {}))[1], **model}
    content = {"name": "t", "input": {"uri": "in/"}, "model": {"uses": uses, "path": path, **model}}
    return parse_job({**content, "output": {"uri": "out"}}, folder / "job.yaml")


def score(job: Job) -> None:
    """As a run does: its files are found, the adapter looks at them, loads the model, and scores."""
    check_keys(job)
    take_models(LocalStorage(), job)
    adapter_of(model_job(job)).inspect(model_job(job), str(job.models[0].path))
    scorer = load_scorer(model_job(job), job.models[0].path)
    if job.models[0].uses not in FOLDERS:
        scorer(TABLE)


@pytest.fixture
def attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Job, Path]]:
    """The job of an attack and the folder that it would make; keywords change its model section."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "net.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(2, 1, bias=False)\n")

    def make(attack: Attack, **model: Any) -> tuple[Job, Path]:
        proof = tmp_path / "proof"
        attack.write(tmp_path / attack.path, proof)
        with suppress(FileNotFoundError):
            proof.rmdir()  # Keras runs a Lambda to learn its shape
        given = {"options": attack.options} if attack.options else {}
        return job_of(tmp_path, attack.uses, attack.path, **given, **model), proof

    return make


@pytest.mark.parametrize("name", ATTACKS)
def test_no_file_runs_code_unless_the_job_trusts_it(attacked: Callable[..., tuple[Job, Path]], name: str) -> None:
    attack = ATTACKS[name]
    job, proof = attacked(attack)
    with pytest.raises(JobError, match=r"model\.trusted: true" if attack.is_program else r"^model\.") as refused:
        score(job)
    assert not proof.exists()
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.is_program])
def test_a_program_runs_where_the_job_trusts_it(attacked: Callable[..., tuple[Job, Path]], name: str) -> None:
    job, proof = attacked(ATTACKS[name], trusted=True)
    with suppress(Exception):  # whatever becomes of it then
        score(job)
    assert proof.exists()


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if not attack.is_program])
def test_trust_makes_no_program_of_a_file_of_data(attacked: Callable[..., tuple[Job, Path]], name: str) -> None:
    """It makes no difference for it, whatever Keras then unpickles."""
    if ATTACKS[name].uses == "keras":
        pytest.skip("a trusted Keras file is a program")
    job, proof = attacked(ATTACKS[name], trusted=True)
    with pytest.raises(JobError):
        score(job)
    assert not proof.exists()


def test_vllm_runs_the_code_of_a_folder_only_if_the_job_trusts_it(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"prompt": "{text}", "outputs": {"y": "string"}, "engine": {"trust_remote_code": True}}
    with pytest.raises(JobError, match=r"whose code trust_remote_code runs, a program: .*model\.trusted: true"):
        check_keys(job_of(tmp_path, "vllm", "m", **asked))
    check_keys(job_of(tmp_path, "vllm", "m", trusted=True, **asked))


# ---- other files' bytes -----------------------------------------------------------------------------------------


def linear(path: Path, location: str, where: str) -> None:
    """An ONNX model whose weights lie in a file of this name. where: `initializer`, or `attribute` of a node."""
    from onnx import TensorProto, helper

    weights = helper.make_tensor("w", TensorProto.FLOAT, [2, 1], SECRET, raw=True)
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "8"}.items():
        weights.external_data.add(key=key, value=value)
    takes = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    gives = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])
    constant = [helper.make_node("Constant", [], ["w"], value=weights)] if where == "attribute" else []
    nodes = [*constant, helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", [takes], [gives], [] if constant else [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path.write_bytes(made.SerializeToString())


def onnx_beside(location: str, where: str) -> Callable[[Path, Path], str]:
    def write(folder: Path, secret: Path) -> str:
        (folder / "m").mkdir()
        (folder / "m" / "link").symlink_to(secret)
        (folder / "m" / "up").symlink_to("..")
        linear(folder / "m" / "model.onnx", location.format(secret=secret), where)
        for link in {"link", "up"} - {location.partition("/")[0]}:
            (folder / "m" / link).unlink()
        return "m"

    return write


def keras_external(link: bool, suffix: str) -> Callable[[Path, Path], str]:
    """HDF5 may name other files for what it holds."""

    def write(folder: Path, secret: Path) -> str:
        path = folder / f"m.{suffix}"
        keras_model(path)
        inner = path if suffix == "h5" else folder / "inner.h5"
        if suffix == "keras":
            with zipfile.ZipFile(path) as archive:
                inner.write_bytes(archive.read("model.weights.h5"))
        with h5py.File(folder / "other.h5", "w") as other:
            other["w"] = np.frombuffer(SECRET, "f4").reshape(2, 1)
        with h5py.File(inner, "r+") as file:
            found: list[str] = []
            file.visititems(lambda name, held: found.append(name) if getattr(held, "shape", 0) == (2, 1) else None)
            del file[found[0]]
            if link:
                file[found[0]] = h5py.ExternalLink(str(folder / "other.h5"), "w")
            else:
                file.create_dataset(found[0], (2, 1), "f4", external=[(str(secret), 0, 8)])
        if suffix == "keras":
            rezipped(path, lambda members: members.update({"model.weights.h5": inner.read_bytes()}))
        return path.name

    return write


LEAKS = {
    **{
        f"onnx {where}, {location}": ("onnx", onnx_beside(location, where))
        for where in ("initializer", "attribute")
        for location in ("{secret}", "../secret", "../..", "link", "up/secret")
    },
    **{
        f"keras {suffix}, {'link' if link else 'external'}": ("keras", keras_external(link, suffix))
        for suffix in ("keras", "h5")
        for link in (True, False)
    },
}


@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.parametrize("trusted", [False, True])
def test_no_bytes_of_other_files_become_weights(tmp_path: Path, name: str, trusted: bool) -> None:
    """They would be published with the outputs."""
    (secret := tmp_path / "secret").write_bytes(SECRET)
    uses, write = LEAKS[name]
    with pytest.raises(JobError, match=r"^model\.path: "):
        score(job_of(tmp_path, uses, write(tmp_path, secret), trusted=trusted))


@pytest.mark.parametrize("uses", FOLDERS)
def test_no_file_of_a_model_folder_is_a_link_out_of_it(tmp_path: Path, uses: str) -> None:
    """It would be kept with the output, too."""
    (tmp_path / "secret.txt").write_text("secret")
    FOLDERS[uses][0](tmp_path / "m")
    (tmp_path / "m" / "vocab.txt").unlink(missing_ok=True)
    (tmp_path / "m" / "vocab.txt").symlink_to("../secret.txt")
    with pytest.raises(JobError, match=r"^model\.path: .*/m/vocab\.txt is a link to .*/secret\.txt, outside of"):
        score(job_of(tmp_path, uses, "m"))


def test_a_model_folder_of_the_hubs_cache_is_taken(tmp_path: Path) -> None:
    """All its files are links, into one folder of contents."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "w").write_bytes(SECRET)
    linear(tmp_path / "blobs" / "m", "weights", "initializer")
    (tmp_path / "snapshots" / "1a").mkdir(parents=True)
    for name, blob in (("model.onnx", "m"), ("weights", "w")):
        (tmp_path / "snapshots" / "1a" / name).symlink_to(f"../../blobs/{blob}")
    score(job_of(tmp_path, "onnx", "snapshots/1a"))


@pytest.mark.parametrize("head", [b"{" + b" " * 100, b'{"a":' + b"[" * 200_000], ids=["long", "deep"])
def test_a_header_of_safetensors_costs_no_more_than_a_sentence(tmp_path: Path, head: bytes) -> None:
    """The file is sparse: a header of 1 GB is refused by its size before it is read."""
    length = 1 << 30 if len(head) < 1000 else len(head)
    with (tmp_path / "m.safetensors").open("wb") as file:
        file.write(length.to_bytes(8, "little") + head)
        file.truncate(8 + length)
    with pytest.raises(JobError, match=r"^model\.path: torch cannot load .*m\.safetensors: SafetensorError: "):
        score(job_of(tmp_path, "torch", "m.safetensors", options=OWN_NET))
