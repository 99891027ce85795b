"""Texts as tokens: all texts of a micro-batch at once, without padding. Imports no framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from nightjar.inference.arrow_types import is_text
from nightjar.inference.errors import JobError
from nightjar.inference.predictors.arrays import Array, to_array
from nightjar.inference.predictors.tabular import features

_AT_ONCE = 1024
"""Texts that go to the tokenizer together. What it returns for a token takes a hundred times the token's id."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of n texts, one text after the other: text i has `ids[starts[i]:starts[i + 1]]`.

    types: which of two texts a token is of, where the model wants to know. spans: the characters of its text that a
    token stands for, of shape (tokens, 2), where somebody asks for them; (-1, -1) for a token that no text has.
    """

    ids: Array
    types: Array | None
    starts: Array
    spans: Array | None = None

    @property
    def lengths(self) -> Array:
        """Tokens of each text, of shape (n,)."""
        return np.diff(self.starts)

    def places(self, rows: Array) -> Array:
        """Where the tokens of these texts lie, one text after the other."""
        lengths = self.lengths[rows]
        return np.repeat(self.starts[rows] - lengths.cumsum() + lengths, lengths) + np.arange(lengths.sum())

    def padded(self, rows: Array, pad: int) -> dict[str, Array]:
        """The texts `rows` as a model takes them, each array of shape (rows, longest) and type int64.

        pad: the id that fills the end of the shorter texts, where `attention_mask` is 0.
        """
        lengths = self.lengths[rows]
        held = np.arange(lengths.max()) < lengths[:, None]
        at = self.places(rows)
        found = {"input_ids": _filled(held, self.ids[at], pad), "attention_mask": held.astype(np.int64)}
        if self.types is not None:
            found["token_type_ids"] = _filled(held, self.types[at], 0)
        return found


def _filled(held: Array, values: Array, pad: int) -> Array:
    target = np.full(held.shape, pad, np.int64)
    target[held] = values
    return target


@dataclass(frozen=True, slots=True)
class Tokeniser:
    """Makes `Tokens`. Several threads may call it at once.

    backend: a tokenizer of the library `tokenizers`, which truncates and does not pad. types: whether the model wants
    to know which of two texts a token is of. spans: whether `Tokens.spans` is asked for. strip, lower, prompt: as in
    `Recipe`.
    """

    backend: Any
    types: bool
    spans: bool = False
    strip: bool = False
    lower: bool = False
    prompt: str = ""

    def __call__(self, texts: Sequence[str], seconds: Sequence[str] | None = None) -> Tokens:
        """Tokenise texts, or pairs of them.

        Raises:
            ValueError: The tokenizer finds nothing in one.
        """
        given: list[Any] = [self._plain(text) for text in texts]
        if seconds is not None:
            given = list(zip(given, map(self._plain, seconds), strict=True))
        encode = self.backend.encode_batch if self.spans else self.backend.encode_batch_fast
        ids, types, spans, lengths = [np.empty(0, np.int32)], [np.empty(0, np.int8)], [np.empty((0, 2), np.int32)], []
        for first in range(0, len(given), _AT_ONCE):
            found = encode(given[first : first + _AT_ONCE])
            lengths += [len(encoding.ids) for encoding in found]
            ids.append(np.fromiter(chain.from_iterable(encoding.ids for encoding in found), np.int32))
            if self.types:
                types.append(np.fromiter(chain.from_iterable(encoding.type_ids for encoding in found), np.int8))
            if self.spans:
                spans += map(_spans, found)
        if 0 in lengths:
            raise ValueError(f"the tokenizer finds no token in {texts[lengths.index(0)]!r}")
        return Tokens(
            np.concatenate(ids),
            np.concatenate(types) if self.types else None,
            np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
            np.concatenate(spans) if self.spans else None,
        )

    def _plain(self, text: str) -> str:
        text = self.prompt + text
        text = text.strip() if self.strip else text
        return text.lower() if self.lower else text


def _spans(encoding: Any) -> Array:
    spans = np.array(encoding.offsets, np.int32).reshape(-1, 2)
    spans[np.array(encoding.special_tokens_mask, bool)] = -1
    return spans


def text_columns(batch: Any, uses: str, most: int = 1) -> list[list[str]]:
    """The columns of any kind of batch as texts: one, or at most two where texts are read as pairs.

    Raises:
        JobError: There are none, or more than `most`.
        TypeError, ValueError: A row is no text.
    """
    held = features.named(batch, uses)
    if not 1 <= len(held) <= most:
        takes = "one column of text" if most == 1 else "one or two columns of text"
        raise JobError(f"model.features: the {uses} adapter takes {takes}; say which of {', '.join(held)}")
    return [_texts(name, column) for name, column in held.items()]


def _texts(name: str, column: Any) -> list[str]:
    arrow = isinstance(column, pa.Array | pa.ChunkedArray)
    if arrow and is_text(column.type) and not column.null_count:
        plain: list[str] = column.to_pylist()
        return plain
    values: list[Any] = to_array(column).tolist()
    for value in values:
        if value is None or value != value:
            raise ValueError(
                f"feature {name!r} has a null, which is no text; to score it as one, write the text in a preprocess"
            )
        if not isinstance(value, str):
            raise TypeError(f"feature {name!r} holds {value!r}, which is no text")
    return values
