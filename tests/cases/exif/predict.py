import numpy as np

from nightjar.inference.predictors.transformers.mediapredictors import pictures


def score(batch):
    images = [np.asarray(each) for each in pictures(batch, "score")]
    return {"width": [each.shape[1] for each in images], "blue_on_top": [int(each[2, 2, 2] > 150) for each in images]}
