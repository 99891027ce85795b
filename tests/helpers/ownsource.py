"""The source of one's own that docs/input.md shows."""

from __future__ import annotations

import re

import numpy as np

from support import ROOT

PAGE = (ROOT / "docs" / "input.md").read_text()
(EXAMPLE,) = re.findall(r"```python\n(\"\"\"readings\.py: .*?)```", PAGE, re.DOTALL)
RECORD = np.dtype([("id", "<i4"), ("x", "<f8")])
