def score(batch):
    return {"both": [f"{a.decode()} {b.decode()}" for a, b in zip(batch["a"], batch["b"], strict=True)]}
