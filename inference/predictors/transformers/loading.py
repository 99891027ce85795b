"""Loads a transformers model and its tokenizer from a folder: without a network, and without code of the folder's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.predictors.adapter import unloadable
from nightjar.inference.predictors.transformers.modelfolder import ModelFolder

_UNLIMITED = 1 << 31
"""A tokenizer that knows no limit says a number of thirty digits."""

_UNUSED = "pooler."
"""How the names of weights of an encoder begin whose results no task takes; many folders have none of them."""


def load_text_model(job: ModelJob, folder: ModelFolder, auto: str) -> tuple[Any, Any]:
    """A model that reads texts, and its tokenizer, on the CPU. auto: the class of transformers that loads the model."""
    with quiet() as transformers:
        model = load_model(job, folder, getattr(transformers, auto))
        if model.config.is_encoder_decoder:
            raise JobError(
                f"model.path: {folder.named} is a {type(model).__name__}, which reads one text and writes another; the "
                f"{job.model.uses} adapter takes models that only read"
            )
        tokenizer = _tokenizer(folder, transformers.AutoTokenizer)
    # Models that read the last token look for the one before the padding, which is the tokenizer's.
    for config in (model.config, model.config.get_text_config()):
        config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def core_of(tokenizer: Any, limit: int, cut: str) -> Any:
    """A copy of a tokenizer's core with settings of its own: it truncates, and does not pad.

    limit: the most tokens of a text. cut: which of two texts loses the tokens beyond that.
    """
    core = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    core.no_padding()
    if limit < _UNLIMITED:
        core.enable_truncation(limit, strategy=cut, direction=tokenizer.truncation_side)
    return core


@contextmanager
def quiet() -> Iterator[Any]:
    """The module transformers, without the progress bars and notes that it prints while it loads."""
    import transformers

    said = transformers.utils.logging
    level, bars = said.get_verbosity(), said.is_progress_bar_enabled()
    said.set_verbosity_error()
    said.disable_progress_bar()
    try:
        yield transformers
    finally:
        said.set_verbosity(level)
        if bars:
            said.enable_progress_bar()


def load_model(job: ModelJob, folder: ModelFolder, auto: Any) -> Any:
    """The model on the CPU, in the type that the job names. auto: the class that loads it."""
    dtype = getattr(torch, job.model.options.get("dtype", "float32"))
    model, loading = loaded(folder, auto, dtype=dtype, output_loading_info=True)
    # transformers fills in random numbers, and warns.
    gone = sorted(str(name) for name in loading["missing_keys"] if not str(name).startswith(_UNUSED))
    if gone:
        more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
        raise JobError(
            f"model.path: {folder.named} has no weights for {', '.join(gone[:3])}{more} of {type(model).__name__}; it "
            f"is not a model for {job.model.uses}, or was not saved whole"
        )
    return model.eval()


def speech_model(transformers: Any, folder: ModelFolder) -> Any:
    """The class that loads a folder's model of speech, as the library's pipeline chooses it: one for models that write
    word after word, as Whisper does, and one for those that tell a letter for each moment.
    """
    writers = transformers.models.auto.modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES
    writes = folder.config["model_type"] in writers
    return transformers.AutoModelForSpeechSeq2Seq if writes else transformers.AutoModelForCTC


def _tokenizer(folder: ModelFolder, auto: Any) -> Any:
    tokenizer = loaded(folder, auto, "the tokenizer of ")
    if not tokenizer.is_fast:
        raise JobError(
            f"model.path: the tokenizer of {folder.named} is written in Python ({type(tokenizer).__name__}), which the "
            "adapter cannot use; convert it to a tokenizer.json"
        )
    if tokenizer.pad_token_id is None:
        raise JobError(
            f"model.path: the tokenizer of {folder.named} has no padding token, without which texts cannot be scored "
            "together; set one and save it again: tokenizer.pad_token = tokenizer.eos_token"
        )
    return tokenizer


def load_image_processor(folder: ModelFolder) -> Any:
    """The processor of a folder's images, of the kind that computes with Pillow: it is the same everywhere."""
    # Under its short name the class asks for torchvision, which it does not need.
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    return loaded(folder, AutoImageProcessor, "the image processor of ", backend="pil")


def loaded(folder: ModelFolder, auto: Any, part: str = "", **options: Any) -> Any:
    """What a class of transformers loads of a folder. part: as in `unloadable`. options: more arguments.

    Raises:
        JobError: It cannot be loaded.
    """
    try:
        return auto.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False, **options)
    except Exception as error:
        raise unloadable("transformers", folder.named, folder.path, error, part=part) from error


def limit_of(job: ModelJob, folder: ModelFolder, model: Any, usual: int) -> int:
    """The most tokens of a text: what the job says, else what is usual, and never more than the model has positions."""
    most = getattr(model.config, "max_position_embeddings", None) or _UNLIMITED
    positions = getattr(getattr(model.base_model, "embeddings", None), "position_embeddings", None)
    padding: int | None = getattr(positions, "padding_idx", None)
    if padding is not None:  # the first ones are no text's, as in RoBERTa
        most -= padding + 1
    asked: int = job.model.options.get("max_length") or min(int(usual), most)
    if asked > most:
        raise JobError(f"model.options.max_length: {asked}, and {folder.named} takes at most {most} tokens")
    return asked
