def score(batch):
    return {"score": [float(each) for each in batch["jpg"]]}
