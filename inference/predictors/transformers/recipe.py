"""How a folder makes one vector of a text: what the files of sentence-transformers say, and what the job says.

sentence-transformers lists its modules in `modules.json`: a transformer, a pooling of its tokens, and often a
normalisation. A folder without this file is a transformer alone; its tokens are averaged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors.transformers.modelfolder import ModelFolder, look, read_json

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
    """How a text becomes a vector.

    pooling: one of `POOLINGS`. normalize: whether vectors have length 1. max_length: the most tokens of a text, if the
    job does not say it; None if only the model knows. strip, lower: whether a text loses the spaces around it, and its
    capitals. prompt: what is put before each text.
    """

    folder: ModelFolder
    pooling: str
    normalize: bool
    max_length: int | None = None
    strip: bool = False
    lower: bool = False
    prompt: str = ""


def recipe_of(job: Job, path: str) -> Recipe:
    """The recipe of a model's folder and of `model.options`, which decide where they say something.

    Raises:
        JobError: The folder is no model's, or asks for something that the adapter does not compute.
    """
    root, named, options = Path(path), str(job.model.path), job.model.options
    if not (root / "modules.json").is_file():
        return Recipe(
            look(job, root, named),
            pooling=options.get("pooling", "mean"),
            normalize=options.get("normalize", False),
            prompt=options.get("prompt", ""),
        )
    modules = _modules(root, named)
    inner = modules["Transformer"]
    settings = _settings(root / inner, named)
    pooling = read_json(root / modules["Pooling"] / "config.json", f"{named}/{modules['Pooling']}/config.json")
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
        max_length=_max_length(settings, named),
        strip=True,
        lower=settings.get("do_lower_case") is True,
        prompt=prompt,
    )


def _modules(root: Path, named: str) -> dict[str, str]:
    """The folders of the modules by their kind: the last part of the name of the module's class."""
    try:
        listed = [(str(each["type"]).rpartition(".")[2], str(each["path"])) for each in _list(root / "modules.json")]
    except (OSError, ValueError, TypeError, KeyError) as error:
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


def _list(path: Path) -> list[Any]:
    content = json.loads(path.read_bytes())
    if not isinstance(content, list):
        raise TypeError("it holds no list")
    return content


def _settings(folder: Path, named: str) -> dict[str, Any]:
    """What sentence-transformers says of its transformer; the file is named after the model's kind."""
    found = sorted(folder.glob("sentence_*_config.json"))
    return read_json(found[0], f"{named}/{found[0].name}") if found else {}


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


def _max_length(settings: dict[str, Any], named: str) -> int | None:
    limit = settings.get("max_seq_length")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise JobError(f"model.path: max_seq_length of {named} is {limit!r}, and not a number of tokens")
    return limit


def _prompt(root: Path, named: str) -> str:
    """The prompt that sentence-transformers puts before each text unless it is told another one."""
    name = "config_sentence_transformers.json"
    config = read_json(root / name, f"{named}/{name}") if (root / name).is_file() else {}
    chosen, prompts = config.get("default_prompt_name"), config.get("prompts")
    return str(prompts.get(chosen, "")) if chosen is not None and isinstance(prompts, dict) else ""
