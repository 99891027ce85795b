import numpy as np


def score(batch):
    return {"score": np.asarray(batch["id"]) * 1.0}
