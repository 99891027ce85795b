"""Subclasses of Ray Data's `ray.data.util.torch_inference.TorchInference`, as they stand.

A subclass says how a batch becomes tensors (`collate`), what the model does with them on its device
(`process_on_device`), and how tensors become outputs (`finalize`). As in Ray Data, the tensors are moved in between.
Unlike there, the device may be the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nightjar.inference.errors import OutputInvalid

_BASE = ("ray.data.util.torch_inference", "TorchInference")


def is_torch_inference(target: Any) -> bool:
    """Whether this is such a subclass. Ray is not imported: whoever defines a subclass has done so."""
    return isinstance(target, type) and _BASE in [(base.__module__, base.__qualname__) for base in target.__mro__]


class Managed:
    """An instance of such a subclass as a `Predictor`."""

    def __init__(self, user: Any) -> None:
        import torch

        self._torch = torch
        self._user = user
        self._device = torch.device(user.get_device())
        self.device = str(self._device)

    def prepare(self, batch: Any) -> Any:
        """Collate the batch. Returns it, its tensors on the CPU, and the rest of what `collate` returned."""
        # `collate` may replace columns of the batch, which the later steps get, too.
        given = dict(batch) if isinstance(batch, Mapping) else batch
        with self._torch.no_grad():
            tensors, other = _with_other(self._user.collate(batch))
        return given, tensors, other

    def predict(self, prepared: Any) -> Any:
        """Compute on the device, and make the outputs on the CPU."""
        given, tensors, other = prepared
        with self._torch.no_grad():
            moved = self._moved(tensors, "collate", join=True)
            computed, more = _with_other(self._user.process_on_device(given, moved, other))
            return self._user.finalize(given, self._moved(computed, "process_on_device", join=False), more)

    def _moved(self, held: Any, method: str, *, join: bool) -> Any:
        """Tensors, also in sequences and mappings, on the device; or on the CPU without `join`.

        join: tensors in a sequence that is itself in a sequence or a mapping are parts of one, and are joined.
        """
        device = self._device if join else self._torch.device("cpu")

        def move(value: Any, depth: int) -> Any:
            if isinstance(value, self._torch.Tensor):
                return value.to(device)
            if isinstance(value, Mapping):
                return {name: move(each, depth + 1) for name, each in value.items()}
            if isinstance(value, (list, tuple)):
                if join and depth and all(isinstance(each, self._torch.Tensor) for each in value):
                    return self._torch.cat([each.to(device) for each in value])
                return type(value)(move(each, depth + 1) for each in value)
            raise OutputInvalid(
                f"{type(self._user).__name__}.{method} returned a {type(value).__name__}; return a tensor, or tensors "
                "in a list, a tuple or a dict, or a pair of these and anything else"
            )

        return move(held, 0)


def _with_other(returned: Any) -> tuple[Any, Any]:
    """What a method returned: a pair is tensors and anything else, as in Ray Data."""
    return returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
