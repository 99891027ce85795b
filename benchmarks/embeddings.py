"""Rows per second of text embeddings: Nightjar beside a class of Ray Data's documentation and sentence-transformers.

All run one after the other, with the same model, the same texts and as many threads; each reads the texts from Parquet
and writes its vectors to Parquet. A model is loaded before its clock starts. The vectors must agree. The class of the
documentation runs twice: in a loop in this process, as the others, and in an actor of Ray Data, where the clock starts
with the first batch.

The texts are WordNet's glosses (`python examples/embeddings/prepare.py` fetches them and the model), and the same with
long texts among them.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import transformers
import yaml

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "embeddings"
MODEL = EXAMPLE / "models" / "minilm"
WIDTH = 384
WARM = "warm"
CPU, GPU = "cpu", "cuda"
LONG_EVERY, LONG_GLOSSES = 64, 30
"""Of the skewed texts each 64th is thirty glosses long, which is more tokens than the model takes."""

Batch = dict[str, Any]
Vectors = np.ndarray[Any, Any]
Run = Callable[[Path, Path], tuple[float, Vectors]]
"""Embeds the texts of a file. Returns the seconds from its first read to its last write, and the vectors."""


class DocumentedPredictor:
    """As Ray Data's documentation writes a predictor for `map_batches`: fixed batches, padded to their longest text."""

    def __init__(self, device: str) -> None:
        settings = json.loads((MODEL / "sentence_bert_config.json").read_text())
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL, model_max_length=settings["max_seq_length"])
        self.model = transformers.AutoModel.from_pretrained(MODEL).eval().to(device)
        self.device = device

    def __call__(self, batch: Batch) -> Batch:
        texts = self.tokenizer(list(batch["text"]), padding=True, truncation=True, return_tensors="pt")
        given = texts.to(self.device)
        with torch.inference_mode():
            tokens = self.model(**given).last_hidden_state
        mask = given["attention_mask"][:, :, None].float()
        vectors = (tokens * mask).sum(1) / mask.sum(1)
        return {"embedding": torch.nn.functional.normalize(vectors, dim=1).cpu().numpy()}


class Timed(DocumentedPredictor):
    """The same class in an actor of Ray Data; it notes when it is called first, and hands the texts on."""

    def __init__(self, device: str, threads: int, note: Path) -> None:
        torch.set_num_threads(threads)
        super().__init__(device)
        self.note: Path | None = note

    def __call__(self, batch: Batch) -> Batch:
        if self.note:
            self.note.write_text(str(time.time()))
            self.note = None
        return {"text": batch["text"], **super().__call__(batch)}


class SentenceTransformers:
    """`encode` of the library sentence-transformers, which sorts the texts that it is given by their length."""

    def __init__(self, device: str, rows: int) -> None:
        """rows: of a batch of the model, of the many that each call is given."""
        from sentence_transformers import SentenceTransformer

        self.model, self.rows = SentenceTransformer(str(MODEL), device=device), rows

    def __call__(self, batch: Batch) -> Batch:
        vectors = self.model.encode(list(batch["text"]), batch_size=self.rows, show_progress_bar=False)
        return {"embedding": vectors}


def by_batches(predictor: Callable[[Batch], Batch], rows: int, source: Path, target: Path) -> tuple[float, Vectors]:
    """A predictor's run over a file, in batches of so many rows."""
    schema = pa.schema([("embedding", pa.list_(pa.float32(), WIDTH))])
    began = time.perf_counter()
    with pq.ParquetFile(source) as file, pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for batch in file.iter_batches(rows):
            found = predictor({"text": batch["text"].to_numpy(zero_copy_only=False)})["embedding"]
            column = pa.FixedSizeListArray.from_arrays(pa.array(found.reshape(-1)), WIDTH)
            writer.write(pa.table([column], schema=schema))
    return time.perf_counter() - began, vectors_of([target])


def by_ray_data(device: str, threads: int, rows: int, source: Path, target: Path) -> tuple[float, Vectors]:
    """The script around the class: read, `map_batches` in an actor, write."""
    import ray.data

    target.mkdir()
    note = target / "first-call"
    texts = ray.data.read_parquet(str(source))
    actors = ray.data.ActorPoolStrategy(size=1)
    done = texts.map_batches(
        Timed,
        fn_constructor_args=(device, threads, note),
        batch_size=rows,
        compute=actors,
        num_cpus=threads,
        num_gpus=gpus_of(device),
    )
    done.write_parquet(str(target / "out"))
    seconds = time.time() - float(note.read_text())
    files = sorted((target / "out").glob("*.parquet"))
    # Ray Data writes the batches in any order. Equal texts have equal vectors.
    place = {text: at for at, text in enumerate(pa.concat_tables(map(pq.read_table, files))["text"].to_pylist())}
    wanted = pq.read_table(source, columns=["text"])["text"].to_pylist()
    return seconds, vectors_of(files)[[place[text] for text in wanted]]


def gpus_of(device: str) -> int:
    return int(device == GPU)


def start_ray(threads: int) -> None:
    """A Ray of this program, which lacks no CPU for reading and writing."""
    import ray.data

    ray.init(address="local", num_cpus=threads + 2, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False


def by_nightjar(
    options: dict[str, Any], device: str, threads: int, source: Path, target: Path
) -> tuple[float, Vectors]:
    """The score step of a night on the local engine: from the first shard's start to the last one's end."""
    from nightjar.inference.engine import LOCAL
    from nightjar.inference.run import scoring
    from nightjar.inference.run.request import make_request

    target.mkdir()
    outputs = {"embedding": f"float32[{WIDTH}]"}
    job = {
        "name": "embeddings",
        "input": {"uri": str(source), "shard_rows": pq.read_metadata(source).num_rows},
        "model": {"uses": "embed", "path": str(MODEL), "features": ["text"], "outputs": outputs, "options": options},
        "output": {"uri": f"{target}/out/"},
        "resources": {"actors": 1, "cpus": threads, "gpus": gpus_of(device)},
    }
    (target / "job.yaml").write_text(yaml.safe_dump(job))
    request = make_request(target / "job.yaml", date="2026-11-19", engine=LOCAL)
    scored = scoring.score(request, scoring.discover(request))
    return scored.progress.steady_s, vectors_of(sorted((target / "out").rglob("data/*.parquet")))


def vectors_of(files: list[Path]) -> Vectors:
    table = pa.concat_tables(pq.read_table(file, columns=["embedding"]) for file in files)
    found = table["embedding"].combine_chunks()
    found = found.storage if isinstance(found, pa.ExtensionArray) else found  # Ray writes tensors
    return np.asarray(found.flatten()).reshape(-1, WIDTH)


def write_texts(folder: Path, rows: int) -> dict[str, Path]:
    """Glosses from all over WordNet, and the same with a few long texts; before them a few to warm up with."""
    glosses = pq.read_table(EXAMPLE / "data" / "glosses.parquet", columns=["gloss"])["gloss"].to_pylist()
    chosen = np.random.default_rng(0).choice(len(glosses), rows, replace=False)
    plain = [glosses[place] for place in chosen]
    skewed = [
        " ".join(glosses[place : place + LONG_GLOSSES]) if row % LONG_EVERY == 0 else glosses[place]
        for row, place in enumerate(chosen)
    ]
    files = {}
    for name, texts in {WARM: skewed[:128], "glosses": plain, "skewed": skewed}.items():
        files[name] = folder / f"{name}.parquet"
        pq.write_table(pa.table({"text": texts}), files[name])
    return files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=64, help="rows of a batch of the documentation's predictor")
    parser.add_argument("--encode-batch", type=int, default=32, help="that of sentence-transformers; 32 is its default")
    parser.add_argument("--batch-tokens", type=int, help="model.options.batch_tokens; default: Nightjar's own")
    parser.add_argument("--texts", nargs="+", choices=["glosses", "skewed"], default=["glosses", "skewed"])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", choices=[CPU, GPU], default=CPU)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    transformers.utils.logging.disable_progress_bar()
    options = {"batch_tokens": asked.batch_tokens} if asked.batch_tokens else {}
    peers: dict[str, Run] = {
        "nightjar": partial(by_nightjar, options, asked.device, asked.threads),
        "documentation": partial(by_batches, DocumentedPredictor(asked.device), asked.batch),
        "documentation, on Ray": partial(by_ray_data, asked.device, asked.threads, asked.batch),
    }
    start_ray(asked.threads)
    if importlib.util.find_spec("sentence_transformers"):
        peers["sentence-transformers"] = partial(
            by_batches, SentenceTransformers(asked.device, asked.encode_batch), asked.rows
        )
    with tempfile.TemporaryDirectory() as place:
        for name, source in write_texts(Path(place), asked.rows).items():
            if name not in {WARM, *asked.texts}:
                continue
            took: dict[str, list[float]] = {peer: [] for peer in peers}
            wanted: Vectors | None = None
            for repeat in range(1 if name == WARM else asked.repeat):
                for peer, run in peers.items():
                    seconds, vectors = run(source, Path(place, f"{name}-{peer}-{repeat}"))
                    wanted = vectors if wanted is None else wanted
                    np.testing.assert_allclose(vectors, wanted, atol=1e-4, err_msg=peer)
                    took[peer].append(seconds)
            if name != WARM:
                tell(name, asked.rows, took)


def tell(name: str, rows: int, took: dict[str, list[float]]) -> None:
    """Print rows per second, and Nightjar's speed as a multiple of each peer's within a repeat."""
    for peer, times in took.items():
        ratios = [other / own for own, other in zip(took["nightjar"], times, strict=True)]
        spread = f"{min(ratios):.2f}–{max(ratios):.2f}"
        print(f"{name:8} {peer:22} {rows / statistics.median(times):6.0f} rows/s, nightjar {spread} times as fast")


if __name__ == "__main__":
    main()
