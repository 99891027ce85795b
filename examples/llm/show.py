"""Print how many glosses are about what, and some of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from nightjar.flows import files

JOB = Path(__file__).resolve().parent / "job.yaml"
SHOWN = 8


def main() -> None:
    """Read what is published."""
    table = files(JOB).dataset().to_table(columns=["words", "gloss", "topic", "concrete", "output_tokens"])
    print(", ".join(f"{topic}: {count}" for topic, count in Counter(table["topic"].to_pylist()).most_common()))
    for row in table.slice(0, SHOWN).to_pylist():
        print(f"{row['topic']:8} {'concrete' if row['concrete'] else 'abstract'}  {row['words']}: {row['gloss'][:70]}")


if __name__ == "__main__":
    main()
