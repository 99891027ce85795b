"""Train gradient boosted trees on January to June and save them to `models/delay.txt`.

They learn from the same flights and columns as the net of train.py, and both.yaml scores with both in one read.
If the model is newer than the data and the code, a run does nothing.
"""

from __future__ import annotations

from pathlib import Path

import lightgbm
from evaluate import auc
from prepare import HERE, MONTHS, TRAIN_MONTHS, is_trained
from train import CODES, FEATURES, read

MODEL = HERE / "models" / "delay.txt"

TREES = 120
SETTINGS = {"objective": "binary", "num_leaves": 31, "learning_rate": 0.05, "seed": 2013, "deterministic": True}


def main() -> None:
    """Train, save and measure."""
    if is_trained(MODEL, Path(__file__)):
        return
    features, late = (each.numpy() for each in read(TRAIN_MONTHS))
    data = lightgbm.Dataset(features, late, feature_name=list(FEATURES), categorical_feature=list(CODES))
    model = lightgbm.train({**SETTINGS, "verbosity": -1}, data, TREES)
    MODEL.parent.mkdir(exist_ok=True)
    unfinished = MODEL.with_suffix(".unfinished")
    model.save_model(unfinished)
    unfinished.replace(MODEL)
    new_features, new_late = (each.numpy() for each in read(set(MONTHS) - set(TRAIN_MONTHS)))
    learned, new = auc(model.predict(features), late), auc(model.predict(new_features), new_late)
    print(f"AUC {learned:.4f} on {len(late):,} flights learned from, {new:.4f} on {len(new_late):,} new ones")
    print(f"wrote {MODEL}")


if __name__ == "__main__":
    main()
