"""Keras with torch below it, and a layer of one's own."""

from __future__ import annotations

from typing import Any

from nightjar.inference.predictors.tabular.keras import keras_on_torch

keras = keras_on_torch()
layers = keras.layers


@keras.saving.register_keras_serializable("mine")
class Odd(layers.Layer):  # type: ignore[misc]  # Keras has no types
    """A layer that only its author's code can make."""

    def call(self, given: Any) -> Any:
        return given
