def score(batch):
    return {"said": list(batch["text"])}
