"""`uses: torch` with TorchScript, or with weights for a module that the user's code makes: it scores as torch does."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from predicting import MakeJob, jobs_in

from nightjar.inference.errors import JobError, OutputInvalid
from nightjar.inference.job.model import Job
from nightjar.inference.predictors import check_keys, load_scorer
from nightjar.inference.predictors.adapter import adapter_of
from nightjar.inference.scoring.microbatches import BatchSize, drained, score_table

F32 = pa.float32()
NET = '''
from typing import Optional

import torch
from torch import nn

class Net(nn.Module):
    """Of a table; with dropout, which must not be at work when it scores."""

    def __init__(self, width: int = 2, outputs: int = 1):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, outputs))

    def forward(self, x):
        return self.layers(x)

class Pair(nn.Module):
    """Of several inputs, the last of which need not be given."""

    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(10, 4), nn.Embedding(5, 4)

    def forward(self, user, item, price: Optional[torch.Tensor] = None):
        score = (self.users(user) * self.items(item)).sum(-1)
        return score if price is None else score * price

class Picture(nn.Module):
    def __init__(self):
        super().__init__()
        self.fold, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, image):
        return self.head(self.fold(image).mean([2, 3]))

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20, 3)

    def forward(self, ids):
        return {"score": self.table(ids).mean(1), "first": self.table(ids)[:, 0, 0]}

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(2, 2), nn.Linear(2, 2)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.other(self.one(x))

class Double(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1, dtype=torch.float64)

    def forward(self, x):
        return self.layer(x)

def build(**args):
    return Net(**args)

def fails(size):
    raise ValueError(f"no net of size {size}")

async def later():
    return Net()

number = lambda: 3
constant = 3
'''

has_safetensors = pytest.mark.skipif(
    find_spec("safetensors") is None, reason="pip install 'nightjar-batch[safetensors]'"
)
FILES = ["script.pt", "state.pt", "state.pth", pytest.param("state.safetensors", marks=has_safetensors)]
"""The files that a module may be in: TorchScript, or its weights."""

each_file = pytest.mark.parametrize("file", FILES)


@pytest.fixture
def make_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeJob]:
    with jobs_in(tmp_path, monkeypatch) as make:
        (tmp_path / "net.py").write_text(NET)
        monkeypatch.syspath_prepend(tmp_path)
        yield make
        sys.modules.pop("net", None)


def module_of(name: str, **args: Any) -> torch.nn.Module:
    import net  # type: ignore[import-not-found]  # a test wrote it

    torch.manual_seed(len(name))
    made: torch.nn.Module = getattr(net, name)(**args)
    return made.eval()


def write(folder: Path, file: str, module: torch.nn.Module) -> None:
    if file.startswith("script"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.jit.save(torch.jit.script(module), folder / file)
    elif file.endswith(".safetensors"):
        from safetensors.torch import save_model

        save_model(module, str(folder / file))
    else:
        torch.save(module.state_dict(), folder / file)


Loaded = tuple[Job, torch.nn.Module]


@pytest.fixture
def load(make_job: MakeJob, tmp_path: Path) -> Callable[..., Loaded]:
    """A job with a module's file of a kind, and the module itself; keywords change the model section."""

    def made(file: str, name: str, args: dict[str, Any] | None = None, **model: Any) -> Loaded:
        module = module_of(name, **(args or {}))
        write(tmp_path, file, module)
        own = {} if file.startswith("script") else {"model": f"net:{name}", **({"args": args} if args else {})}
        options = {**own, **model.pop("options", {})}
        model = {"uses": "torch", "path": file, "outputs": {"score": "float32"}, "options": options, **model}
        return make_job(**model), module

    return made


def scored(job: Job, table: pa.Table) -> dict[str, np.ndarray]:
    """What the job scores, checked as a run checks it."""
    check_keys(job)
    adapter = adapter_of(job)
    adapter.inspect(job, str(job.model.path))
    adapter.check_columns(job, table.schema)
    outputs = load_scorer(job, job.model.path)(table)
    return {name: np.array(values.to_pylist()) for name, values in outputs.items()}


def numbers(rows: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(1).random((rows, *shape), np.float32)


def table_of(values: np.ndarray) -> pa.Table:
    return pa.table({name: values[:, index] for index, name in enumerate("abcdefgh"[: values.shape[1]])})


# ---- it scores as torch does --------------------------------------------------------------------------------


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
@pytest.mark.parametrize("channels_last", [False, True])
def test_tensors_keep_their_shapes(load: Callable[..., Loaded], file: str, channels_last: bool) -> None:
    options = {"channels_last": True} if channels_last else {}
    job, module = load(file, "Picture", outputs={"score": "float32[2]"}, options=options)
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


@pytest.mark.parametrize("file", ["state.pt", "state.pth"])
def test_lists_of_indices_stay_whole_numbers_and_outputs_have_their_names(
    load: Callable[..., Loaded], file: str
) -> None:
    job, module = load(file, "Tokens", outputs={"first": "float32", "score": "float32[3]"})
    ids = np.random.default_rng(0).integers(0, 20, (9, 5))
    with torch.no_grad():
        expected = module(torch.from_numpy(ids))
    found = scored(job, pa.table({"ids": list(ids)}))
    for name in ("first", "score"):
        np.testing.assert_array_equal(found[name], expected[name].numpy())


@each_file
def test_columns_of_whole_numbers_beside_each_other_are_floats(load: Callable[..., Loaded], file: str) -> None:
    job, module = load(file, "Net")
    hours = np.arange(10)
    with torch.no_grad():
        expected = module(torch.from_numpy(np.column_stack([hours, hours % 3])).float()).numpy().reshape(-1)
    np.testing.assert_array_equal(scored(job, pa.table({"hour": hours, "flag": hours % 3}))["score"], expected)


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
@pytest.mark.parametrize(
    ("autocast", "dtype"), [(True, None), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_autocast_computes_as_torchs_own(
    load: Callable[..., Loaded], file: str, autocast: bool | str, dtype: torch.dtype | None
) -> None:
    job, module = load(file, "Net", options={"autocast": autocast})
    values = numbers(40, 2)
    with torch.inference_mode(), torch.autocast("cpu", dtype=dtype):
        expected = module(torch.from_numpy(values))
    assert expected.dtype in {torch.bfloat16, torch.float16}
    np.testing.assert_array_equal(scored(job, table_of(values))["score"], expected.float().numpy().reshape(-1))


def test_a_compiled_module_scores_alike(load: Callable[..., Loaded]) -> None:
    """Batches of several sizes, from two threads."""
    job, module = load("state.pt", "Net", options={"compile": True})
    scorer = load_scorer(job, job.model.path)
    tables = [table_of(numbers(rows, 2)) for rows in (64, 7, 64, 33)]
    with ThreadPoolExecutor(2) as threads:
        for table, found in zip(tables, threads.map(scorer, tables), strict=True):
            values = np.column_stack([column.to_numpy() for column in table.columns])
            with torch.no_grad():
                expected = module(torch.from_numpy(values)).numpy().reshape(-1)
            np.testing.assert_allclose(found["score"].to_numpy(), expected, rtol=1e-5, atol=1e-6)


@has_safetensors
def test_weights_under_one_of_two_names_fill_both(load: Callable[..., Loaded]) -> None:
    """safetensors keeps a tensor that a module has twice once."""
    job, module = load("state.safetensors", "Tied", outputs={"score": "float32[2]"})
    values = numbers(5, 2)
    with torch.no_grad():
        expected = module(torch.from_numpy(values)).numpy()
    np.testing.assert_array_equal(scored(job, table_of(values))["score"], expected)


# ---- what does not fit --------------------------------------------------------------------------------------


@each_file
def test_lists_of_another_width_cost_their_rows_and_columns_of_another_the_job(
    load: Callable[..., Loaded], file: str
) -> None:
    job, _ = load(file, "Net")
    with pytest.raises(JobError, match=r"^model\.features: a, b, c make .*\(n, 3\), and the module takes none such"):
        scored(job, table_of(numbers(4, 3)))
    rows = [[1.0, 2.0], [1.0, 2.0, 3.0], [3.0, 4.0]]
    steps = score_table(
        pa.table({"v": pa.array(rows, pa.list_(F32))}), load_scorer(job, job.model.path), BatchSize(3),
        job.model.output_types(),
    )  # fmt: skip
    failures = drained(steps).failures
    assert [(failure.row, failure.error) for failure in failures] == [(1, "ValueError")]


@each_file
def test_another_number_of_outputs_is_said(load: Callable[..., Loaded], file: str) -> None:
    job, _ = load(file, "Net", outputs={"score": "float32", "other": "float32"})
    with pytest.raises(
        OutputInvalid, match=r"the module returned 1 outputs, but model\.outputs declares 2: output 'oth"
    ):
        scored(job, table_of(numbers(4, 2)))


WEIGHTS = ["state.pt", "state.pth", pytest.param("state.safetensors", marks=has_safetensors)]


@pytest.mark.parametrize("file", WEIGHTS)
@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            {"width": 5},
            r"'layers\.0\.weight' has shape \(8, 2\) in .*{file}, and \(8, 5\) in the module that net:Net makes; see "
            r"model\.options\.args$",
        ),
        (
            None,
            r".*{file} has 'layers\.0\.(weight|bias)' of shape \(8.*\) and 3 more, and the module that net:Tied ",
        ),
    ],
)
def test_weights_of_another_module_are_met_with_the_first_that_does_not_fit(
    load: Callable[..., Loaded], make_job: MakeJob, file: str, args: dict[str, Any] | None, sentence: str
) -> None:
    job, _ = load(file, "Net")
    options = {"model": "net:Net", "args": args} if args else {"model": "net:Tied"}
    other = make_job(uses="torch", path=file, options=options)
    with pytest.raises(JobError, match=rf"^model\.path: {sentence.replace('{file}', file)}"):
        load_scorer(other, job.model.path)


@pytest.mark.parametrize("file", WEIGHTS)
def test_weights_that_lack_some_of_the_module_are_not_taken(
    load: Callable[..., Loaded], tmp_path: Path, file: str
) -> None:
    job, module = load(file, "Net")
    for name in ("3.weight", "3.bias"):
        layer, attribute = name.split(".")
        setattr(module.layers[int(layer)], attribute, None)
    write(tmp_path, file, module)
    with pytest.raises(
        JobError,
        match=rf"^model\.path: .*{file} lacks 'layers\.3\.weight' and 1 more, which has shape \(1, 8\) in the mod",
    ):
        load_scorer(job, job.model.path)


@pytest.mark.parametrize(
    ("path", "options", "sentence"),
    [
        ("m.pt2", {"model": "net:Net"}, "model.options.model: has no meaning for an exported program"),
        ("m.pt2", {"dtype": "float16"}, "model.options.dtype: has no meaning for an exported program"),
        ("m.pt", {"compile": True}, "model.options.compile: has no meaning for TorchScript"),
        ("m.pt", {"args": {}}, "model.options.args: has no meaning for TorchScript"),
        ("m.pth", {}, "model.options.model: "),
        ("m.safetensors", {}, "model.options.model: "),
        ("m.pt", {"model": "net.py"}, "model.options.model: 'net.py' must be \"module:name\""),
        (
            "m.pt",
            {"model": "net:Net", "args": ["width"]},
            "model.options.args: must be a mapping of keywords for net:Net",
        ),
        ("m.pt", {"model": "net:Net", "dtype": "half"}, "model.options.dtype: must be float32 or float16 or bfloat16"),
        ("m.pt", {"autocast": "on"}, "model.options.autocast: must be true, float16 or bfloat16, not 'on'"),
        ("m.pt", {"autocast": True, "dtype": "float16"}, "model.options.autocast: the weights already have another"),
        ("m.pt", {"channels_last": 1}, "model.options.channels_last: must be true or false, not 1"),
        (
            "m.pt",
            {"dtyp": "float16"},
            "model.options.dtyp: the torch adapter knows only the options model, args, dtype",
        ),
    ],
)
def test_options_are_checked_by_the_kind_of_file_before_anything_is_loaded(
    make_job: MakeJob, path: str, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(JobError) as caught:
        check_keys(make_job(uses="torch", path=path, options=options))
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"model": "net:Nett"}, r"model\.options\.model: module 'net' \(net\.py\) has no 'Nett'; did you mean 'Net'\?"),
        ({"model": "nett:Net"}, r"model\.options\.model: there is no module 'nett'"),
        ({"model": "net:constant"}, r"model\.options\.model: net:constant is a int, not a function or class"),
        ({"model": "net:later"}, r"model\.options\.model: net:later is async"),
        ({"model": "net:number"}, r"model\.options\.model: net:number returned int, not a torch\.nn\.Module"),
        ({"model": "net:Net", "args": {"widht": 3}}, r"model\.options\.args: net:Net cannot be called: .*'widht'"),
        (
            {"model": "net:fails", "args": {"size": 3}},
            r"model\.options\.model: net:fails failed with ValueError: no net of size 3",
        ),
    ],
)
def test_a_factory_that_makes_no_module_is_named(
    load: Callable[..., Loaded], make_job: MakeJob, options: dict[str, Any], sentence: str
) -> None:
    job, _ = load("state.pt", "Net")
    with pytest.raises(JobError, match=f"^{sentence}"):
        load_scorer(make_job(uses="torch", path="state.pt", options=options), job.model.path)


def test_a_file_of_the_other_kind_is_told_apart(load: Callable[..., Loaded], make_job: MakeJob, tmp_path: Path) -> None:
    load("script.pt", "Net")
    load("state.pt", "Net")
    for options, file, sentence in (
        ({}, "state.pt", r"is not TorchScript that can be read: it holds no code; .* in model\.options\.model"),
        ({"model": "net:Net"}, "script.pt", r"it is TorchScript, .*; remove model\.options\.model"),
    ):
        job = make_job(uses="torch", path=file, options=options)
        for look in (adapter_of(job).inspect, load_scorer):
            with pytest.raises(JobError, match=rf"^model\.path: .*{file} .*{sentence}"):
                look(*((job, str(tmp_path / file))))  # type: ignore[operator]


class Crafted:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("ran"),))


def test_no_pickle_is_loaded_unless_the_job_allows_it(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = module_of("Net")
    torch.save({**module.state_dict(), "evil": Crafted()}, tmp_path / "state.pt")
    job = make_job(uses="torch", path="state.pt", options={"model": "net:Net"})
    with pytest.raises(JobError, match=r"^model\.path: .*holds other objects than tensors.*model\.allow_pickle: true$"):
        load_scorer(job, job.model.path)
    assert not (tmp_path / "ran").exists()
    torch.save(module, tmp_path / "state.pt")
    allowed = make_job(uses="torch", path="state.pt", options={"model": "net:Net"}, allow_pickle=True)
    found = scored(allowed, table_of(numbers(3, 2)))["score"]
    with torch.no_grad():
        np.testing.assert_array_equal(found, module(torch.from_numpy(numbers(3, 2))).numpy().reshape(-1))
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Crafted()))
    with pytest.raises(JobError, match=r"^model\.path: .*bare\.pt is not a state dict that can be read"):
        load_scorer(make_job(uses="torch", path="bare.pt", options={"model": "net:Net"}), str(tmp_path / "bare.pt"))
