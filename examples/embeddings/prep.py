"""Makes the ONNX model's inputs of a batch of glosses: the ids of their tokens, and which of them are padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

TOKENIZER = Path(__file__).parent / "models" / "minilm" / "tokenizer.json"


class Tokenize:
    """Texts become ids and a mask of shape (n, longest): each batch is padded to the longest of its own texts."""

    def __init__(self, max_length: int) -> None:
        self.tokenizer = Tokenizer.from_file(str(TOKENIZER))
        # The file itself says: cut to 128 tokens and pad to 128.
        self.tokenizer.enable_truncation(max_length)
        self.tokenizer.enable_padding()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        texts = self.tokenizer.encode_batch(batch["gloss"].tolist())
        return {
            "input_ids": np.array([text.ids for text in texts]),
            "attention_mask": np.array([text.attention_mask for text in texts]),
        }
