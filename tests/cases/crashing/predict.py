import os
import signal


class Crashes:
    def __init__(self, path):
        os.kill(os.getpid(), signal.SIGSEGV)

    def __call__(self, batch):
        return {"score": batch["x"]}
