"""Small transformers models of images and sounds, with random weights, made and saved by the tests that use them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lazily import lazily

torch = lazily("torch")
transformers = lazily("transformers")
bytes_to_unicode = lazily("transformers.convert_slow_tokenizer", "bytes_to_unicode")

KINDS = {0: "cat", 1: "dog", 2: "bird"}
RATE = 16_000
LETTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ'"]
VIT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16, "patch_size": 4}


def photos(rows: int, height: int = 20, width: int = 30, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Images of noise, some of one size and some of another."""
    chance = np.random.default_rng(seed)
    return [chance.integers(0, 256, (height + 8 * (row % 2), width, 3), dtype=np.uint8) for row in range(rows)]


def encoded(image: np.ndarray[Any, Any]) -> bytes:
    """An image as the bytes of a PNG."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def save_classifier(folder: Path, **config: Any) -> Path:
    torch.manual_seed(1)
    settings = {"image_size": 16, "id2label": KINDS, "initializer_range": 0.3, **VIT, **config}
    transformers.ViTForImageClassification(transformers.ViTConfig(**settings)).save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return folder


def save_detector(folder: Path) -> Path:
    """YOLOS keeps the proportions of an image, so images of two sizes are of two sizes for the model."""
    torch.manual_seed(2)
    settings = {"image_size": [16, 24], "num_detection_tokens": 6, "id2label": KINDS, "initializer_range": 1.0, **VIT}
    transformers.YolosForObjectDetection(transformers.YolosConfig(**settings)).save_pretrained(folder)
    size = {"shortest_edge": 16, "longest_edge": 24}
    transformers.YolosImageProcessorPil(size=size, do_pad=False).save_pretrained(folder)
    return folder


def save_listener(folder: Path) -> Path:
    """Wav2Vec2: a letter for each moment."""
    torch.manual_seed(3)
    settings = {
        "vocab_size": len(LETTERS),
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "conv_dim": (8, 8),
        "conv_kernel": (10, 3),
        "conv_stride": (5, 4),
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2,
        "initializer_range": 2.0,
    }
    transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**settings)).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(sampling_rate=RATE).save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({letter: place for place, letter in enumerate(LETTERS)}))
    transformers.Wav2Vec2CTCTokenizer(folder / "vocab.json").save_pretrained(folder)
    return folder


def recordings(rows: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Noise of up to a fifth of a second."""
    chance = np.random.default_rng(seed)
    return [chance.normal(0, 0.3, 800 + 300 * (row % 5)).astype("f4") for row in range(rows)]


LANGUAGES = ("en", "de", "fr")


def save_whisper(folder: Path, multilingual: bool = True) -> Path:
    """Whisper: text, token after token, from windows of 3 seconds in place of 30.

    A token for each byte, then those of Whisper: what a text begins with, and a time for each fiftieth of a second.
    """
    torch.manual_seed(4)
    bytes_of = list(bytes_to_unicode().values())
    starts = [f"<|{code}|>" for code in LANGUAGES] if multilingual else []
    begin = ["<|endoftext|>", "<|startoftranscript|>", *starts, "<|translate|>", "<|transcribe|>"]
    names = [*begin, "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"]
    times = [f"<|{place * 0.02:.2f}|>" for place in range(151)]
    place_of = {token: place for place, token in enumerate([*bytes_of, *names, *times])}
    tokenizer = transformers.WhisperTokenizer(vocab={each: place_of[each] for each in bytes_of}, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": names[1:]})
    tokenizer.add_tokens(times)
    assert {token: tokenizer.convert_tokens_to_ids(token) for token in place_of} == place_of
    end, start = place_of["<|endoftext|>"], place_of["<|startoftranscript|>"]
    config = transformers.WhisperConfig(
        vocab_size=len(place_of),
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        init_std=1.0,
        max_source_positions=150,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=start,
        begin_suppress_tokens=[end],
    )
    model = transformers.WhisperForConditionalGeneration(config)
    several = {
        "is_multilingual": True,
        "lang_to_id": {each: place_of[each] for each in starts},
        "task_to_id": {each: place_of[f"<|{each}|>"] for each in ("transcribe", "translate")},
    }
    chosen = {
        **(several if multilingual else {"is_multilingual": False}),
        "no_timestamps_token_id": place_of["<|notimestamps|>"],
        "max_initial_timestamp_index": 50,
        "return_timestamps": False,
        "max_new_tokens": 6,
        "num_beams": 1,
    }
    begins = {name: getattr(config, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    model.generation_config = transformers.GenerationConfig(decoder_start_token_id=start, **begins, **chosen)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(chunk_length=3).save_pretrained(folder)
    return folder
