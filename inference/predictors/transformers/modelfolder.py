"""Inspects the folder of a transformers model without a library: whether it is one, and how a model of
sentence-transformers makes a vector of a text. Whether its files are whole is seen by the library that loads them.

The weights are safetensors; or `pytorch_model.bin`, of which transformers and vLLM unpickle tensors alone.
sentence-transformers lists its modules in `modules.json`: a transformer, a pooling of its tokens, and often a
normalisation. A folder without this file is a transformer alone; its tokens are averaged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob

_TOKENISERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_HOW = "write one with model.save_pretrained(folder) and tokenizer.save_pretrained(folder)"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """The folder with config.json. named: how the job names it, for messages."""

    path: Path
    named: str
    config: dict[str, Any]


def look(job: ModelJob, path: Path, named: str, *, tokenizer: bool = True, processor: bool = False) -> ModelFolder:
    """Look at a model's folder: its configuration, and the files of what reads its rows: of a tokenizer, which reads
    texts, or of a processor, which reads images or sounds.

    A tokenizer without files is no error of transformers: it makes one that knows no word.

    Raises:
        JobError: One is missing.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else "is not there"
        raise JobError(f"model.path: {named} {what}; the {job.model.uses} adapter needs a model's folder: {_HOW}")
    config = _read(path / "config.json", f"{named}/config.json", otherwise=f"so this is no model's folder: {_HOW}")
    if not isinstance(config.get("model_type"), str):
        raise JobError(f"model.path: {named}/config.json names no model_type, so this is no transformers model; {_HOW}")
    if processor and not any((path / name).is_file() for name in _PROCESSORS):
        raise JobError(
            f"model.path: {named} has no {_PROCESSORS[0]}, so rows cannot be read for this model; save its processor "
            "into the same folder: processor.save_pretrained(folder)"
        )
    if tokenizer and not any((path / name).is_file() for name in _TOKENISERS):
        raise JobError(
            f"model.path: {named} has no tokenizer.json, so texts cannot be read for this model; save its tokenizer "
            "into the same folder: tokenizer.save_pretrained(folder)"
        )
    return ModelFolder(path, named, config)


def _read(path: Path, named: str, kind: type = dict, otherwise: str = "") -> Any:
    """The object in a JSON file, or the list. otherwise: what it means if there is none."""
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, kind):
            raise TypeError(f"it holds no {kind.__name__}")
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise JobError(
            f"model.path: {named} cannot be read: {reason}" + (f"; {otherwise}" if otherwise else "")
        ) from error
    return content


# ---- models of sentence-transformers: how a text becomes one vector ------------------------------------------

POOLINGS = ("mean", "cls", "max", "last")
_MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
    "lasttoken": "last",
}
"""Names of poolings in the files of sentence-transformers → those of the job."""

_KNOWN = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a text becomes a vector."""

    folder: ModelFolder
    """The folder of the transformer: the model's own, or one in it that `modules.json` names."""

    pooling: str
    """One of `POOLINGS`."""

    normalize: bool
    """Whether vectors have length 1."""

    max_length: int | None = None
    """The most tokens of a text, if the job does not say it; None if only the model knows."""

    strip: bool = False
    """Whether a text loses the spaces around it."""

    lower: bool = False
    """Whether a text loses its capitals."""

    prompt: str = ""
    """The beginning that is put before each text."""

    def plain(self, text: str) -> str:
        """A text as the tokenizer gets it."""
        text = self.prompt + text
        text = text.strip() if self.strip else text
        return text.lower() if self.lower else text


def recipe_of(job: ModelJob, root: Path, named: str) -> Recipe:
    """The recipe of a model's folder, where `model.options` does not say otherwise.

    named: how the job names the folder, for messages.

    Raises:
        JobError: The folder is no model's, or asks for something that the adapter does not compute.
    """
    options = job.model.options
    if not (root / "modules.json").is_file():
        return Recipe(
            look(job, root, named),
            pooling=options.get("pooling", "mean"),
            normalize=options.get("normalize", False),
            prompt=options.get("prompt", ""),
        )
    modules = _modules(root, named)
    inner = modules["Transformer"]
    # What sentence-transformers says of its transformer; the file is named after the model's kind.
    said = sorted((root / inner).glob("sentence_*_config.json"))
    settings = _read(said[0], f"{named}/{said[0].name}") if said else {}
    pooling = _read(root / modules["Pooling"] / "config.json", f"{named}/{modules['Pooling']}/config.json")
    prompt = options.get("prompt", _prompt(root, named))
    if prompt and pooling.get("include_prompt") is False:
        raise JobError(
            f"model.path: {named} leaves the prompt {prompt!r} out of its pooling, which the embed adapter cannot; "
            "score it with a class of your own, or set model.options.prompt: ''"
        )
    return Recipe(
        look(job, root / inner, f"{named}/{inner}" if inner else named),
        pooling=options.get("pooling") or _pooling(pooling, named),
        normalize=options.get("normalize", "Normalize" in modules),
        max_length=settings.get("max_seq_length"),
        strip=True,
        lower=settings.get("do_lower_case") is True,
        prompt=prompt,
    )


def _modules(root: Path, named: str) -> dict[str, str]:
    """The folders of the modules by their kind: the last part of the name of the module's class."""
    content = _read(root / "modules.json", f"{named}/modules.json", list)
    try:
        listed = [(str(each["type"]).rpartition(".")[2], str(each["path"])) for each in content]
    except (TypeError, KeyError) as error:
        raise JobError(f"model.path: {named}/modules.json cannot be read: {type(error).__name__}: {error}") from error
    kinds = tuple(kind for kind, _ in listed)
    if kinds not in {_KNOWN, _KNOWN[:2]}:
        raise JobError(
            f"model.path: {named} is made of {', '.join(kinds) or 'nothing'}, and the embed adapter computes "
            f"{', '.join(_KNOWN)} only, in this order; score it with a class of your own"
        )
    for kind, folder in listed:
        if Path(folder).is_absolute() or ".." in Path(folder).parts:
            raise JobError(f"model.path: {named}/modules.json has its {kind} in {folder!r}, outside of the folder")
    return dict(listed)


def _pooling(config: dict[str, Any], named: str) -> str:
    mode = config.get("pooling_mode")
    if mode is None:
        asked = [key for key, on in config.items() if key.startswith("pooling_mode_") and on is True]
    else:
        asked = [str(each) for each in mode] if isinstance(mode, list) else [str(mode)]
    names = [_MODES.get(each, each) for each in asked]
    if len(names) != 1 or names[0] not in POOLINGS:
        raise JobError(
            f"model.path: {named} asks for the pooling {' and '.join(names) or 'of nothing'}, and the embed adapter "
            f"knows {', '.join(POOLINGS)}, one at a time; to use another one set model.options.pooling"
        )
    return names[0]


def _prompt(root: Path, named: str) -> str:
    """The prompt that sentence-transformers puts before each text unless it is told another one."""
    name = "config_sentence_transformers.json"
    config = _read(root / name, f"{named}/{name}") if (root / name).is_file() else {}
    chosen, prompts = config.get("default_prompt_name"), config.get("prompts")
    return str(prompts.get(chosen, "")) if chosen is not None and isinstance(prompts, dict) else ""
