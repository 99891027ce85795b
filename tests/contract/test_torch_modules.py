"""`uses: torch` with TorchScript, or with weights for a module that the user's code makes: it scores as torch does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from lazily import lazily
from nightjar.inference.errors import JobError
from torchnets import F32, Loaded, each_file, has_safetensors, load, make_job, numbers, scored, table_of

torch = lazily("torch")

__all__ = ["load", "make_job"]  # fixtures


@each_file
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_features_beside_each_other_score_as_the_module_does(load: Callable[..., Loaded], file: str, rows: int) -> None:
    """Exactly: the same operations run over the same batch."""
    job, module = load(file, "Net", {"width": 3})
    values = numbers(rows, 3)
    with torch.no_grad():
        expected = module(torch.from_numpy(values)).numpy().reshape(-1)
    np.testing.assert_array_equal(scored(job, table_of(values))["score"], expected)


@each_file
@pytest.mark.parametrize(
    "kind", [pa.list_(F32), pa.list_(F32, 3), pa.large_list(F32), pa.fixed_shape_tensor(F32, [3])], ids=str
)
def test_columns_of_vectors_are_tensors(load: Callable[..., Loaded], file: str, kind: pa.DataType) -> None:
    job, module = load(file, "Net", {"width": 3, "outputs": 2}, outputs={"score": "float32[2]"})
    values = numbers(50, 3)
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    column = pa.array(values.tolist(), storage)
    column = pa.ExtensionArray.from_storage(kind, column) if storage is not kind else column
    with torch.no_grad():
        expected = module(torch.from_numpy(values)).numpy()
    np.testing.assert_array_equal(scored(job, pa.table({"v": column}))["score"], expected)


@each_file
def test_tensors_keep_their_shapes(load: Callable[..., Loaded], file: str) -> None:
    job, module = load(file, "Picture", outputs={"score": "float32[2]"})
    images = numbers(6, 3, 8, 8)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(images)
    with torch.no_grad():
        expected = module(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(scored(job, pa.table({"image": column}))["score"], expected, atol=1e-6)


@each_file
def test_several_inputs_get_the_columns_of_their_names_or_in_order(load: Callable[..., Loaded], file: str) -> None:
    """Whole numbers stay such: they are indices. An argument with a default may be left out."""
    job, module = load(file, "Pair")
    user, item, price = np.arange(8), np.arange(8) % 5, numbers(8)
    with torch.no_grad():
        without = module(torch.from_numpy(user), torch.from_numpy(item)).numpy()
        expected = module(*map(torch.from_numpy, (user, item, price))).numpy()
    named = pa.table({"price": price, "item": item, "user": user.astype("i4")})
    np.testing.assert_array_equal(scored(job, named)["score"], expected)
    np.testing.assert_array_equal(scored(job, named.select(["item", "user"]))["score"], without)
    np.testing.assert_array_equal(scored(job, pa.table({"a": user, "b": item}))["score"], without)
    np.testing.assert_array_equal(scored(job, pa.table({"a": user, "b": item, "c": price}))["score"], expected)
    with pytest.raises(JobError, match=r"^model\.features: the module takes 2 inputs \(user, item\) for 4 columns"):
        scored(job, pa.table(dict.fromkeys("abcd", user)))


@each_file
def test_inputs_of_several_shapes_get_the_columns_of_their_names(load: Callable[..., Loaded], file: str) -> None:
    """Whatever the order of the features."""
    job, module = load(file, "Mixed")
    words, price = np.random.default_rng(0).integers(0, 10, (9, 4)), numbers(9)
    with torch.no_grad():
        expected = module(torch.from_numpy(words), torch.from_numpy(price)).numpy()
    table = pa.table({"price": price, "words": list(words)})
    for names in (["price", "words"], ["words", "price"]):
        np.testing.assert_array_equal(scored(job, table.select(names))["score"], expected)


@each_file
def test_the_columns_of_one_tensor_fill_an_output_each(load: Callable[..., Loaded], file: str) -> None:
    job, module = load(file, "Net", {"width": 3, "outputs": 2}, outputs={"left": "float32", "right": "float32"})
    values = numbers(50, 3)
    with torch.no_grad():
        expected = module(torch.from_numpy(values)).numpy()
    found = scored(job, table_of(values))
    for at, name in enumerate(("left", "right")):
        np.testing.assert_array_equal(found[name], expected[:, at])


@pytest.mark.parametrize("file", ["state.pt", "state.pth"])
@pytest.mark.parametrize("length", [5, 1])
def test_lists_of_indices_stay_whole_numbers_and_outputs_have_their_names(
    load: Callable[..., Loaded], file: str, length: int
) -> None:
    job, module = load(file, "Tokens", outputs={"first": "float32", "score": "float32[3]"})
    ids = np.random.default_rng(0).integers(0, 20, (9, length))
    with torch.no_grad():
        expected = module(torch.from_numpy(ids))
    found = scored(job, pa.table({"ids": list(ids)}))
    for name in ("first", "score"):
        np.testing.assert_array_equal(found[name], expected[name].numpy())


@each_file
@pytest.mark.parametrize("names", [["hour", "flag"], ["hour"]])
def test_columns_of_whole_numbers_for_one_input_are_floats(
    load: Callable[..., Loaded], file: str, names: list[str]
) -> None:
    job, module = load(file, "Net", {"width": len(names)})
    hours = pa.table({"hour": np.arange(10), "flag": np.arange(10) % 3}).select(names)
    with torch.no_grad():
        expected = module(torch.from_numpy(np.column_stack(hours.columns)).float()).numpy().reshape(-1)
    np.testing.assert_array_equal(scored(job, hours)["score"], expected)


@each_file
def test_inputs_have_the_type_of_the_weights(load: Callable[..., Loaded], file: str) -> None:
    job, module = load(file, "Double", outputs={"score": "float64"})
    values = np.random.default_rng(1).random((7, 2))
    with torch.no_grad():
        expected = module(torch.from_numpy(values)).numpy().reshape(-1)
    np.testing.assert_array_equal(scored(job, table_of(values))["score"], expected)


@each_file
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_and_inputs_are_cast_to_the_type_that_the_job_names(
    load: Callable[..., Loaded], file: str, dtype: str
) -> None:
    job, module = load(file, "Net", options={"dtype": dtype})
    values = numbers(40, 2)
    kind = getattr(torch, dtype)
    with torch.no_grad():
        expected = module.to(kind)(torch.from_numpy(values).to(kind)).float().numpy().reshape(-1)
    np.testing.assert_array_equal(scored(job, table_of(values))["score"], expected)


@each_file
@pytest.mark.parametrize(("autocast", "dtype"), [(True, None), ("bfloat16", "bfloat16"), ("float16", "float16")])
def test_autocast_computes_as_torchs_own(
    load: Callable[..., Loaded], file: str, autocast: bool | str, dtype: str | None
) -> None:
    job, module = load(file, "Net", options={"autocast": autocast})
    values = numbers(40, 2)
    with torch.inference_mode(), torch.autocast("cpu", dtype=dtype and getattr(torch, dtype)):
        expected = module(torch.from_numpy(values))
    assert expected.dtype in {torch.bfloat16, torch.float16}
    np.testing.assert_array_equal(scored(job, table_of(values))["score"], expected.float().numpy().reshape(-1))


@has_safetensors
def test_weights_under_one_of_two_names_fill_both(load: Callable[..., Loaded]) -> None:
    """safetensors keeps a tensor that a module has twice once."""
    job, module = load("state.safetensors", "Tied", outputs={"score": "float32[2]"})
    values = numbers(5, 2)
    with torch.no_grad():
        expected = module(torch.from_numpy(values)).numpy()
    np.testing.assert_array_equal(scored(job, table_of(values))["score"], expected)
