"""Errors for too little memory are known for every framework, also in a user's own class, and no others are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lazily import lazily
from nightjar.inference.predictors.adapter import is_memory
from nightjar.inference.scoring.assignment import BatchSize
from nightjar.inference.scoring.microbatches import drained
from predicting import score_table

lightgbm = lazily("lightgbm")
onnxruntime = lazily("onnxruntime")
torch = lazily("torch")
xgboost = lazily("xgboost")
TensorProto = lazily("onnx", "TensorProto")
helper = lazily("onnx", "helper")

TOO_MANY = 1 << 50
"""Bytes that no machine has."""


def expanding() -> onnxruntime.InferenceSession:
    """A model that makes as many numbers as it is asked for."""
    takes = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
        helper.make_tensor_value_info("n", TensorProto.INT64, [1]),
    ]
    gives = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])]
    graph = helper.make_graph([helper.make_node("Expand", ["x", "n"], ["y"])], "g", takes, gives)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def expand(n: int) -> Any:
    return expanding().run(None, {"x": np.ones(1, "f4"), "n": np.array([n])})[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.empty(TOO_MANY),
        lambda: np.empty(TOO_MANY),
        lambda: pa.allocate_buffer(TOO_MANY),
        lambda: bytearray(1 << 60),
        lambda: expand(TOO_MANY),
    ],
    ids=["torch on the CPU", "numpy", "arrow", "python", "onnxruntime"],
)
def test_what_is_really_raised_for_too_much_memory_is_known(call: Callable[[], Any]) -> None:
    with pytest.raises(Exception, match=r".*") as caught:
        call()
    assert is_memory(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.zeros(2) @ torch.zeros(3),
        lambda: np.zeros(2) @ np.zeros(3),
        lambda: pa.array([1]).cast("bool_"),
        lambda: expanding().run(None, {"x": np.ones(2, "f4"), "n": np.array([3])}),
        lambda: expand(-7),
        lambda: xgboost.Booster(model_file="/nowhere"),
        lambda: lightgbm.Booster(model_str="no model"),
    ],
    ids=["torch", "numpy", "arrow", "onnxruntime's input", "onnxruntime's Fail", "xgboost", "lightgbm"],
)
def test_other_errors_of_the_same_frameworks_are_not(call: Callable[[], Any]) -> None:
    with pytest.raises(Exception, match=r".*") as caught:
        call()
    assert not is_memory(caught.value)


def named(module: str, name: str, base: type[Exception] = Exception) -> type[Exception]:
    """A type as a framework that is not installed here has it."""
    return type(name, (base,), {"__module__": module})


EXHAUSTED = named("tensorflow.python.framework.errors_impl", "ResourceExhaustedError")
XLA = named("jaxlib.xla_extension", "XlaRuntimeError", RuntimeError)
JAX = named("jax.errors", "JaxRuntimeError", RuntimeError)


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (lambda: type("Own", (torch.OutOfMemoryError,), {})("mine"), True),
        (lambda: xgboost.core.XGBoostError("std::bad_alloc"), True),
        (
            lambda: xgboost.core.XGBoostError(
                "[10:00:00] device_helpers.cu:22: Memory allocation error on worker 0: …"
            ),
            True,
        ),
        (lambda: xgboost.core.XGBoostError("Check failed: out of memory is a column's name"), False),
        (lambda: lightgbm.basic.LightGBMError("std::bad_alloc"), True),
        (lambda: EXHAUSTED("OOM when allocating tensor with shape[4194304,4194304]"), True),
        (lambda: XLA("RESOURCE_EXHAUSTED: Out of memory allocating 70368744177664 bytes."), True),
        (lambda: JAX("RESOURCE_EXHAUSTED: Out of memory allocating 70368744177664 bytes."), True),
        (lambda: JAX("INVALID_ARGUMENT: Argument does not match"), False),
        (lambda: XLA("INVALID_ARGUMENT: Argument does not match"), False),
        (lambda: RuntimeError("CUDA out of memory"), False),  # the type of everything, and not torch's own words
        (lambda: named("mine", "ResourceExhaustedError")("no more licences"), False),
        (lambda: named("torches", "OutOfMemoryError")("a lamp"), False),
    ],
    ids=lambda each: each if isinstance(each, bool) else None,
)
def test_the_type_decides_and_the_words_only_where_a_framework_has_one_type(
    error: Callable[[], Exception], memory: bool
) -> None:
    assert is_memory(error()) is memory


def test_an_error_that_was_raised_from_one_counts_and_one_raised_beside_it_does_not() -> None:
    """`raise … from error` says that this is why; an error while another is handled says nothing."""

    def fail(said: bool) -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory")
        except torch.OutOfMemoryError as error:
            raise ValueError("scoring failed") from (error if said else None)

    for said in (True, False):
        with pytest.raises(ValueError, match="scoring failed") as caught:
            fail(said)
        assert is_memory(caught.value) is said
    turning = ValueError("a")
    turning.__cause__ = turning
    assert not is_memory(turning)


def test_an_error_that_cannot_say_what_it_is_is_none() -> None:
    class Silent(RuntimeError):
        def __str__(self) -> str:
            raise KeyError("lost")

    assert not is_memory(Silent())


def test_a_ceiling_is_learned_from_onnxruntime_in_a_users_own_function() -> None:
    """Its rows are tried again in halves, and the size that sufficed is kept; without that each batch would fail."""
    session, calls = expanding(), []

    def score(table: pa.Table) -> dict[str, pa.Array]:
        calls.append(table.num_rows)
        n = table.num_rows if table.num_rows <= 5 else TOO_MANY
        return {"score": pa.array(session.run(None, {"x": np.ones(1, "f4"), "n": np.array([n])})[0])}

    size = BatchSize(32)
    done = drained(score_table(pa.table({"x": range(64)}), score, size, {"score": pa.float32()}))
    assert not done.failures
    assert done.outputs.num_rows == 64
    assert (size.most, size.forced) == (4, 4)
    assert [rows for rows in calls if rows > 5] == [32, 16, 8]


def test_no_framework_is_imported_to_know_them() -> None:
    code = (
        "import sys\nfrom nightjar.inference.predictors.adapter import is_memory\n"
        "assert not is_memory(ValueError())\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "onnxruntime", "xgboost", "lightgbm", "tensorflow", "jax"} & set(done.stdout.split())
