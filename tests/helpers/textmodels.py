"""Small transformers models, made and saved by the tests that use them; and what the library itself makes of a text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lazily import lazily
from nightjar.inference.job.file import parse_job
from nightjar.inference.job.model import Job

torch = lazily("torch")
transformers = lazily("transformers")
Tokenizer = lazily("tokenizers", "Tokenizer")
models = lazily("tokenizers", "models")
normalizers = lazily("tokenizers", "normalizers")
pre_tokenizers = lazily("tokenizers", "pre_tokenizers")
processors = lazily("tokenizers", "processors")

__all__ = ["transformers"]

NOUNS = ["cat", "dog", "bird", "river", "stone", "runs", "sleeps", "sings"]
WORDS = [*NOUNS, "a", "an", "the", "under", "over", "near", "red", "blue", "old", "small", ".", ","]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WIDTH, POSITIONS = 32, 64


def sentences(rows: int, longest: int = 40, seed: int = 0) -> list[str]:
    """Texts of 1 to `longest` words, most of them short."""
    chance = np.random.default_rng(seed)
    lengths = np.minimum(chance.geometric(0.15, rows), longest)
    return [" ".join(chance.choice(WORDS, size)) for size in lengths]


def save_tokenizer(folder: Path, **more: Any) -> None:
    """One that has a token for each word, and reads pairs, too."""
    core = Tokenizer(models.WordLevel({word: place for place, word in enumerate([*SPECIAL, *WORDS])}, "[UNK]"))
    core.normalizer = normalizers.BertNormalizer()
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    transformers.PreTrainedTokenizerFast(
        **{"tokenizer_object": core, "model_max_length": POSITIONS, "model_input_names": inputs, **named, **more}
    ).save_pretrained(folder)


def bert_config(**more: Any) -> transformers.BertConfig:
    """Two layers, which are large enough to tell rows apart."""
    return transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        **more,
    )


def save_model(folder: Path, kind: str = "BertModel", **config: Any) -> Path:
    """A model with random weights, and its tokenizer."""
    torch.manual_seed(5)
    getattr(transformers, kind)(bert_config(initializer_range=0.2, **config)).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_recipe(
    folder: Path, pooling: str = "mean_tokens", normalize: bool = True, inner: str = "", **settings: Any
) -> Path:
    """The files with which sentence-transformers says how texts become vectors, and the model in `inner`."""
    save_model(folder / inner)
    kinds = {"Transformer": inner, "Pooling": "1_Pooling", **({"Normalize": "2_Normalize"} if normalize else {})}
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (kind, path) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = dict.fromkeys([f"pooling_mode_{each}" for each in ("cls_token", "mean_tokens", "max_tokens")], False)
    content = {"word_embedding_dimension": WIDTH, **modes, f"pooling_mode_{pooling}": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(content))
    if settings:
        (folder / inner / "sentence_bert_config.json").write_text(json.dumps(settings))
    return folder


def direct(
    folder: Path, texts: Sequence[str], pooling: str = "mean", normalize: bool = True, max_length: int = POSITIONS
) -> np.ndarray[Any, Any]:
    """The vectors of texts, each computed alone by transformers, as sentence-transformers describes it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    found = []
    for text in texts:
        given = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
        with torch.no_grad():
            tokens = model(**given).last_hidden_state[0]
        vector = {"mean": tokens.mean(0), "cls": tokens[0], "max": tokens.max(0).values, "last": tokens[-1]}[pooling]
        found.append((vector / vector.norm() if normalize else vector).numpy())
    return np.array(found)


def text_job(folder: Path, path: str = "model", *, job: dict[str, Any] | None = None, **section: Any) -> Job:
    """A job that embeds; keywords change its model section."""
    content = {
        "name": "t",
        "input": {"uri": "in/"},
        "model": {"uses": "embed", "path": path, "outputs": {"vector": f"float32[{WIDTH}]"}, **section},
        "output": {"uri": "out"},
        **(job or {}),
    }
    return parse_job(content, folder / "job.yaml")
