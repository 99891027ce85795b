"""Of which features the categories in LightGBM's file are.

LightGBM writes pandas' categories of each column that has some, in the order of the columns, but not of which columns.
Of each feature it writes what was seen in training: values (`0:2:1`) if it was told that the feature is categorical, a
range (`[0:2]`) if not, or `none` if that is no use to the model. A column of pandas' categories was given to it as
their codes, so it can be in each of these forms; and whole numbers that the user called categorical have values, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nightjar.inference.errors import JobError
from nightjar.inference.messages import counted, nearest
from nightjar.inference.predictors import features

KEY = "model.options.categories"

_Pairs = tuple[tuple[int, int], ...]
"""Places of features, each with the place of its list."""


@dataclass(frozen=True)
class CategoryLists:
    """What the file says. lists: of categories. seen: of each feature. used: whether a tree splits on the feature.
    named: the features with categories, if the user says so.
    """

    lists: Sequence[pa.Array]
    seen: Sequence[str]
    used: Sequence[bool]
    named: Sequence[str] = ()

    def of(self, held: Mapping[str, Any]) -> features.Categories:
        """The categories of each column that has some. held: the columns in the model's order.

        Raises:
            JobError: The file and the columns leave open which these are, or do not agree.
        """
        if self.named:
            return self._as_named(list(held))
        found = self._pairings(list(held.values())) if len(held) == len(self.seen) else []
        if len(found) == 1:
            return self._by_name(list(held), found[0])
        text = [name for name, column in held.items() if features.is_category(column)]
        if not found:
            raise JobError(
                f"model.features: the model was trained with {counted(len(self.lists), 'column')} of categories, and "
                f"{len(text)} of the columns that it gets {'is' if len(text) == 1 else 'are'} of text"
                + (f": {', '.join(text)}" if text else "")
                + f"; if this is right, name those that had pandas' type category in {KEY}"
            )
        one, other = (", ".join(self._by_name(list(held), each)) for each in found)
        raise JobError(
            f"{KEY}: the model's file has {counted(len(self.lists), 'list')} of categories and does not say whether of "
            f"{one} or of {other}; name the columns that had pandas' type category in training, as [{one}]"
        )

    def _as_named(self, names: Sequence[str]) -> features.Categories:
        wanted = {name if name in names else name.replace(" ", "_") for name in self.named}
        for name in wanted - set(names):
            raise JobError(f"{KEY}: {name!r} is no column of the model{nearest(name, names)}")
        if len(wanted) != len(self.lists):
            raise JobError(
                f"{KEY}: {counted(len(wanted), 'name')}, and the model's file has {counted(len(self.lists), 'list')}"
            )
        found = tuple((place, row) for row, place in enumerate(at for at, name in enumerate(names) if name in wanted))
        for place, row in found:
            if len(names) == len(self.seen) and _highest(self.seen[place]) >= len(self.lists[row]):
                raise JobError(
                    f"{KEY}: {names[place]!r} had codes up to {_highest(self.seen[place]):g} in training, and its list "
                    f"in the model's file has only the codes up to {len(self.lists[row]) - 1}"
                )
        return self._by_name(names, found)

    def _by_name(self, names: Sequence[str], pairs: _Pairs) -> features.Categories:
        return {names[place]: self.lists[row] for place, row in pairs}

    def _pairings(self, columns: Sequence[Any]) -> list[_Pairs]:
        """The ways to give each list a column, in their order, that the file allows; two of them are enough.

        Ways that differ only in columns that no tree looks at are one way.
        """
        # For each number of lists that are left to give away, from the last: the ways to do so with the columns so far.
        ways: list[list[_Pairs]] = [*([] for _ in self.lists), [()]]
        for place in reversed(range(len(columns))):
            category = features.is_category(columns[place])
            for row in range(len(ways)):
                new = [] if category else ways[row]
                if row < len(self.lists) and self._fits(category, columns[place], self.seen[place], self.lists[row]):
                    new = [*new, *(((place, row), *rest) for rest in ways[row + 1])]
                ways[row] = list({tuple(pair for pair in way if self.used[pair[0]]): way for way in new}.values())[:2]
        return ways[0]

    def _fits(self, category: bool, column: Any, seen: str, categories: pa.Array) -> bool:
        """Whether a column can be of these categories. category: whether it is of text or the like: such a column has
        categories, because LightGBM takes no text. Of numbers are those whose every value was a category.
        """
        if category:
            return True
        if not features.comparable(column, categories):
            return False
        if seen == "none":
            return len(categories) <= 1
        if seen.startswith("["):
            return [float(each) for each in seen[1:-1].split(":")] == [0, len(categories) - 1]
        return _highest(seen) < len(categories)


def _highest(seen: str) -> float:
    """The highest value that was seen of a feature; -1 if none is known."""
    return max((float(each) for each in re.findall(r"[^\[\]:]+", seen) if each != "none"), default=-1)
