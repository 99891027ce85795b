"""Compare the published vectors of `onnx.yaml` with what `uses: embed` computes by torch of the same glosses."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nightjar.flows import files
from nightjar.inference import load_job
from nightjar.inference.job.modeljob import model_jobs
from nightjar.inference.predictors import load_scorer

HERE = Path(__file__).resolve().parent
LEAST = 0.999


def main() -> None:
    """Print the cosines, and fail if one of them is too small."""
    job = load_job(HERE / "job.yaml")
    table = files(HERE / "onnx.yaml").dataset().to_table(columns=["words", "gloss", "sentence_embedding"])
    by_torch = load_scorer(model_jobs(job)[0], job.models[0].path)(table.select(["gloss"]))["embedding"]
    one, other = (
        np.asarray(each.flatten()).reshape(table.num_rows, -1)
        for each in (table["sentence_embedding"].combine_chunks(), by_torch)
    )
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    worst = int(cosines.argmin())
    print(f"{table.num_rows:,} glosses by onnxruntime and by torch: cosine {cosines.mean():.7f} on average")
    print(f"worst  {cosines[worst]:.7f}  {table['words'][worst]}: {table['gloss'][worst]}")
    if not cosines[worst] > LEAST:
        raise SystemExit(f"a cosine is not above {LEAST}")


if __name__ == "__main__":
    main()
