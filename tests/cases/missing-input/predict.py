def score(batch):
    return {"score": batch["x"]}
