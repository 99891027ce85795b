"""An exported torch program as a predictor: takes feature columns, returns named outputs. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import MappingKey, TreeSpec, tree_flatten_with_path, tree_unflatten

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.predictors.outputs import in_order
from nightjar.inference.predictors.tabular import features
from nightjar.inference.predictors.tabular.filling import Filling, fillings, numbers
from nightjar.inference.predictors.tabular.placing import device_of_job, fill_tensor, keep_in_file
from nightjar.inference.predictors.tabular.torchfiles import EXPORT_HINT, not_loaded

_MATRIX_OPS = {"aten.linear.default", "aten.mm.default", "aten.addmm.default"}


def load_program(job: Job, path: str) -> Program:
    """Load the exported program onto the job's device. Sets torch's number of threads for the process."""
    device = device_of_job(job)
    try:
        exported = torch.export.load(path)
        if device.type == "cuda":
            exported = move_to_device_pass(exported, device)
        else:
            held = (*exported.state_dict.values(), *exported.constants.values())
            keep_in_file((each for each in held if isinstance(each, torch.Tensor)), path)
        module = exported.module()
    except Exception as error:
        raise not_loaded(job, path, error) from error
    return Program(exported, module, device, tuple(job.model.outputs))


class _Input:
    """One input of the program.

    rest: its shape after the batch dimension, None for a dimension of any size. any_layout: it may be a transposed
    tensor.
    """

    name: str
    dtype: torch.dtype
    rest: tuple[int | None, ...]
    any_layout: bool

    def __init__(self, node: torch.fx.Node) -> None:
        value: Any = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.ndim == 0:
            raise JobError(f"model.path: input {node.name!r} of the program is not a tensor with a batch dimension")
        batch, *rest = value.shape
        if type(batch) is int:
            raise JobError(
                f"model.path: the program takes only batches of {batch} (input {node.name!r}); export it with a "
                f"dynamic first dimension, from an example of more than one row: {EXPORT_HINT}"
            )
        self.name = node.name
        self.dtype = value.dtype
        self.rest = tuple(size if type(size) is int else None for size in rest)
        # A matrix product reads a transposed operand as fast as any; another operation may call `view` and fail.
        self.any_layout = len(rest) == 1 and all(str(user.target) in _MATRIX_OPS for user in node.users)


class Program:
    """An exported program as a predictor: takes a table or batch of features, returns outputs by name.

    A program with one input gets all features stacked to shape (n, F). A program with one input per feature gets each
    as a tensor, matched by name if the names are the same. Several threads may call it at once.
    """

    def __init__(
        self,
        exported: torch.export.ExportedProgram,
        module: torch.nn.Module,
        device: torch.device,
        outputs: tuple[str, ...],
    ) -> None:
        names = exported.graph_signature.user_inputs
        nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
        if not all(isinstance(name, str) for name in names):
            raise JobError("model.path: the program takes a constant as input; export it with only tensors as inputs")
        self._inputs = [_Input(nodes[str(name)]) for name in names]
        self._outputs = outputs
        self._place = device
        self._module = module
        self._spec = exported.call_spec.in_spec
        self._names = _names(self._inputs, self._spec)
        self.device = str(device)

    def prepare(self, batch: Any) -> list[torch.Tensor]:
        """Convert the columns of a Table or batch to the program's inputs, in memory from which the device can copy."""
        columns = {name: numbers(name, column, "torch") for name, column in features.named(batch, "torch").items()}
        return [self._tensor(filling) for filling in fillings(self._inputs, self._names, columns)]

    def predict(self, prepared: list[torch.Tensor]) -> dict[str, Any]:
        """Run the program. Returns its outputs by name."""
        tensors = [tensor.to(self._place, non_blocking=True) for tensor in prepared]
        # The program may take a dict of columns, keywords or plain tensors, as it was exported.
        arguments, keywords = tree_unflatten(tensors, self._spec)
        with torch.inference_mode():
            return in_order(self._module(*arguments, **keywords), self._outputs, "program")

    def _tensor(self, filling: Filling[_Input]) -> torch.Tensor:
        transposed = filling.stacked and filling.input.any_layout
        return fill_tensor(filling, filling.input.dtype, self._place, transposed=transposed)


def _names(inputs: Sequence[_Input], spec: TreeSpec) -> list[str]:
    """The names that the model's author gave to the inputs: keys of a dict, keywords, or arguments.

    Placeholders keep only the argument's name; torch changes the case of their names and puts the argument's name
    before that of a key.
    """
    paths, _ = tree_flatten_with_path(tree_unflatten(range(len(inputs)), spec))
    lasts = [path[-1] for path, _ in paths]
    return [
        str(last.key) if isinstance(last, MappingKey) else each.name for last, each in zip(lasts, inputs, strict=True)
    ]
