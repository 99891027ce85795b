def twice(x):
    print("in a process of the model's", flush=True)
    return x * 2
