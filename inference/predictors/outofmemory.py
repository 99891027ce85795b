"""Tells errors for too little memory from all others, for every framework known, whoever called it.

A user's own class may compute with any framework. So errors are told by the names of their types, and no framework is
imported. A framework that has one type for whatever it meets is told by that type and by how it words this one error.
"""

from __future__ import annotations

from collections.abc import Iterator

_TYPES = {
    ("torch", "OutOfMemoryError"),
    ("tensorflow", "ResourceExhaustedError"),
    ("cupy", "OutOfMemoryError"),
    ("rmm", "OutOfMemoryError"),
}
"""Types for nothing else: the package that defines one, and its name."""

_WORDS = {
    ("jaxlib", "XlaRuntimeError"): ("RESOURCE_EXHAUSTED:",),
    ("jax", "JaxRuntimeError"): ("RESOURCE_EXHAUSTED:",),
    ("onnxruntime", "Fail"): ("Failed to allocate memory for requested buffer", "std::bad_alloc"),
    ("onnxruntime", "RuntimeException"): ("Failed to allocate memory for requested buffer", "std::bad_alloc"),
    ("xgboost", "XGBoostError"): ("std::bad_alloc", "Memory allocation error on worker"),
    ("lightgbm", "LightGBMError"): ("std::bad_alloc", "bad allocation"),
    ("_catboost", "CatBoostError"): ("std::bad_alloc", "bad allocation", "Out of memory"),
    ("builtins", "RuntimeError"): (
        "DefaultCPUAllocator: can't allocate memory",
        "DefaultCPUAllocator: not enough memory",
    ),
}
"""Types for whatever a framework meets, and how the error for too little memory is worded.

The plain RuntimeError is torch's on the CPU. The words of JAX, onnxruntime 1.32 and torch 2.13 were seen; those of
XGBoost, LightGBM and CatBoost are what C++ calls the error, and XGBoost's own on a GPU (src/common/device_helpers.cu).
"""


def is_memory(error: BaseException) -> bool:
    """Whether an error means too little memory, or was raised from one that does (`raise … from error`)."""
    return any(_is_memory(each) for each in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in seen:
        yield each
        seen.append(each)
        each = each.__cause__


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    names = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__]
    if not _TYPES.isdisjoint(names):
        return True
    return any(word in _said(error) for name in names[:1] for word in _WORDS.get(name, ()))


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (a user's own error may fail to say what it is)
        return ""
