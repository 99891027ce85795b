"""An exported torch program as a predictor: takes feature columns, returns named outputs. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import MappingKey, TreeSpec, tree_flatten_with_path, tree_unflatten

from nightjar.inference.errors import JobError
from nightjar.inference.job.modeljob import ModelJob
from nightjar.inference.predictors.tabular.features import by_name
from nightjar.inference.predictors.tabular.filling import Input, columns_of, fillings
from nightjar.inference.predictors.tabular.placing import device_of_job, fill_tensor, keep_in_file
from nightjar.inference.predictors.tabular.torchfiles import EXPORT_HINT, not_loaded

_MATRIX_OPS = {"aten.linear.default", "aten.mm.default", "aten.addmm.default"}


def load_program(job: ModelJob, path: str) -> Program:
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


def _input(node: torch.fx.Node) -> Input:
    """The input of a placeholder in the program."""
    value: Any = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        raise JobError(f"model.path: input {node.name!r} of the program is not a tensor with a batch dimension")
    batch, *rest = value.shape
    if type(batch) is int:
        raise JobError(
            f"model.path: the program takes only batches of {batch} (input {node.name!r}); export it with a "
            f"dynamic first dimension, from an example of more than one row: {EXPORT_HINT}"
        )
    # A matrix product reads a transposed operand as fast as any; another operation may call `view` and fail.
    any_layout = len(rest) == 1 and all(str(user.target) in _MATRIX_OPS for user in node.users)
    return Input(node.name, tuple(size if type(size) is int else None for size in rest), value.dtype, any_layout)


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
        self._inputs = [_input(nodes[str(name)]) for name in names]
        self._outputs = outputs
        self._place = device
        self._module = module
        self._spec = exported.call_spec.in_spec
        self._names = _names(self._inputs, self._spec)
        self.device = str(device)

    def prepare(self, batch: Any) -> list[torch.Tensor]:
        """Convert the columns of a Table or batch to the program's inputs, in memory from which the device can copy."""
        filled = fillings(self._inputs, self._names, columns_of(batch, "torch"))
        return [fill_tensor(each, each.input.dtype, self._place, each.input.any_layout) for each in filled]

    def predict(self, prepared: list[torch.Tensor]) -> dict[str, Any]:
        """Run the program. Returns its outputs by name."""
        tensors = [tensor.to(self._place, non_blocking=True) for tensor in prepared]
        # The program may take a dict of columns, keywords or plain tensors, as it was exported.
        arguments, keywords = tree_unflatten(tensors, self._spec)
        with torch.inference_mode():
            return by_name(self._module(*arguments, **keywords), self._outputs, "program")


def _names(inputs: Sequence[Input], spec: TreeSpec) -> list[str]:
    """The names that the model's author gave to the inputs: keys of a dict, keywords, or arguments.

    Placeholders keep only the argument's name; torch changes the case of their names and puts the argument's name
    before that of a key.
    """
    paths, _ = tree_flatten_with_path(tree_unflatten(range(len(inputs)), spec))
    lasts = [path[-1] for path, _ in paths]
    return [
        str(last.key) if isinstance(last, MappingKey) else each.name for last, each in zip(lasts, inputs, strict=True)
    ]
