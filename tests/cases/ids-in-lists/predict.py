def largest(batch):
    rows = zip(batch["id"], batch["seen"], batch["user"], strict=True)
    return {"text": [f"{number} {None if seen is None else list(seen)} {user['id']}" for number, seen, user in rows]}


def single(batch):
    return {"text": [str(number if number is None else int(number)) for number in batch["id"]]}
