"""Loads torch modules: TorchScript, or the user's own module filled with a state dict. Imports torch."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping

import torch

from nightjar.inference.errors import JobError
from nightjar.inference.job.model import Job
from nightjar.inference.messages import nearest
from nightjar.inference.predictors.adapter import needed
from nightjar.inference.predictors.tabular.mapped import keep_in_file
from nightjar.inference.predictors.tabular.modules import Module
from nightjar.inference.predictors.tabular.placing import device_of_job
from nightjar.inference.predictors.tabular.torchfiles import SCRIPTED, inspect_torch, is_safetensors, kind_of
from nightjar.inference.predictors.user import built

Tensors = Mapping[str, torch.Tensor]


def load_module(job: Job, model_path: str | None) -> Module:
    """Load the module onto the job's device, in the types that the job names. Sets torch's number of threads.

    Raises:
        JobError: The file cannot be loaded, the module cannot be made, or the two do not fit. Names the key.
    """
    path = needed(job, model_path)
    inspect_torch(job, path)
    device, options = device_of_job(job), job.model.options
    module = _scripted(job, path) if kind_of(job) is SCRIPTED else _filled(job, path)
    module.eval()
    module.to(device=device, dtype=getattr(torch, options["dtype"]) if "dtype" in options else None)
    if options.get("channels_last"):
        # torch's own annotation lacks the keyword alone.
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Module(job, module, device)


def _scripted(job: Job, path: str) -> torch.nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.13 calls TorchScript deprecated
            module: torch.nn.Module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
        keep_in_file([*module.parameters(), *module.buffers()], path)
    except Exception as error:
        raise _not_loaded(job, path, error) from error
    return module


def _filled(job: Job, path: str) -> torch.nn.Module:
    given = _weights(job, path)
    module = built(job, "model.options.model")
    if not isinstance(module, torch.nn.Module):
        raise JobError(
            f"model.options.model: {job.model.options['model']} returned {type(module).__name__}, not a torch.nn.Module"
        )
    own = module.state_dict(keep_vars=True)
    _check_fits(job, own, given)
    # Weights that are used as they lie in the file are shared by all processes of a node; a copy is each one's own.
    at = {_place(own[name]): tensor for name, tensor in given.items()}
    whole = {name: given.get(name, at.get(_place(tensor))) for name, tensor in own.items()}
    as_own = {name: tensor.to(own[name].dtype) for name, tensor in whole.items() if tensor is not None}
    module.load_state_dict(as_own, strict=False, assign=True)
    return module


def _weights(job: Job, path: str) -> dict[str, torch.Tensor]:
    """The tensors of a file by name.

    Raises:
        JobError: The file cannot be read, holds none, or other objects besides and the job does not trust it.
    """
    if is_safetensors(job.model.path):
        return _safetensors(job, path)
    try:
        held = torch.load(path, map_location="cpu", weights_only=not job.model.trusted, mmap=True)
    except pickle.UnpicklingError as error:
        raise JobError(
            f"model.path: {job.model.path} holds other objects than tensors, and to load them is to run whatever their "
            "maker put into them, as you; write model.trusted: true if you trust the maker, or save "
            "module.state_dict() alone"
        ) from error
    except Exception as error:
        raise _not_loaded(job, path, error) from error
    if isinstance(held, torch.nn.Module):
        held = held.state_dict()
    if not isinstance(held, Mapping) or not all(isinstance(each, torch.Tensor) for each in held.values()):
        keys = f" with {', '.join(map(str, list(held)[:5]))}" if isinstance(held, Mapping) else ""
        raise JobError(
            f"model.path: {job.model.path} holds {type(held).__name__}{keys}, and not the tensors of a module; save "
            "module.state_dict() alone"
        )
    return dict(held)


def _safetensors(job: Job, path: str) -> dict[str, torch.Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise JobError(
            f"model.path: {job.model.path} needs safetensors; install it: pip install 'nightjar-batch[safetensors]'"
        ) from error
    try:
        loaded: dict[str, torch.Tensor] = load_file(path)
    except Exception as error:
        raise _not_loaded(job, path, error) from error
    return loaded


def _check_fits(job: Job, own: Tensors, given: Tensors) -> None:
    """Check that the file's tensors are those of the module.

    A tensor that the module has under several names may be in the file under one of them.

    Raises:
        JobError: Names the first that does not fit.
    """
    file, spec = job.model.path, job.model.options["model"]
    for name, tensor in own.items():
        if name in given and given[name].shape != tensor.shape:
            raise JobError(
                f"model.path: {name!r} has shape {tuple(given[name].shape)} in {file}, and {tuple(tensor.shape)} in "
                f"the module that {spec} makes; see model.options.args"
            )
    if unknown := [name for name in given if name not in own]:
        name = unknown[0]
        raise JobError(
            f"model.path: {file} has {name!r} of shape {tuple(given[name].shape)}{_others(unknown)}, and the module "
            f"that {spec} makes has none{nearest(name, own)}"
        )
    there = {_place(own[name]) for name in given}
    if missing := [name for name, tensor in own.items() if name not in given and _place(tensor) not in there]:
        name = missing[0]
        raise JobError(
            f"model.path: {file} lacks {name!r}{_others(missing)}, which has shape {tuple(own[name].shape)} in the "
            f"module that {spec} makes"
        )


def _place(tensor: torch.Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    """Where a module has a tensor: the same for two names of one. On the device `meta` there is no memory."""
    return tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride()


def _others(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if names[1:] else ""


def _not_loaded(job: Job, path: str, error: Exception) -> JobError:
    named = str(job.model.path)  # not that of this process's own copy
    said = str(error).replace(path, named)
    return JobError(f"model.path: torch cannot load {named}: {type(error).__name__}: {said}")
