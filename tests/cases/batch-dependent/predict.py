"""A score within the batch, with statistics that belong to the training."""


def z(batch):
    x = batch["x"]
    return {"score": (x - x.mean()) / (x.std() + 1e-9)}


def plain(batch):
    return {"score": batch["x"] - 6}


def scaled(batch):
    return {"x": batch["x"] - batch["x"].mean()}
