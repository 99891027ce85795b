"""Print the published glosses whose meaning is nearest to a sentence: `nearest.py "a large animal that eats grass"`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from nightjar.flows import files
from nightjar.inference import load_job
from nightjar.inference.job.modeljob import model_jobs
from nightjar.inference.predictors import load_scorer

JOB = Path(__file__).resolve().parent / "job.yaml"
SHOWN = 5


def main() -> None:
    """Embed the sentence by the job's own model, and compare."""
    job = load_job(JOB)
    sentence = pa.table({"gloss": [" ".join(sys.argv[1:]) or "a large animal that eats grass"]})
    asked = load_scorer(model_jobs(job)[0], job.models[0].path)(sentence)["embedding"].flatten().to_numpy()
    table = files(JOB).dataset().to_table(columns=["words", "gloss", "embedding"])
    vectors = np.asarray(table["embedding"].combine_chunks().flatten()).reshape(table.num_rows, -1)
    near = vectors @ asked
    for place in np.argsort(-near)[:SHOWN].tolist():
        print(f"{near[place]:.2f}  {table['words'][place]}: {table['gloss'][place]}")


if __name__ == "__main__":
    main()
