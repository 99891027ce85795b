import numpy as np


def score(batch):
    for number in range(10_000):
        print("line", number)
    return {"score": np.asarray(batch["id"]) * 1.0}
