"""What leaves a file of a job folder out of what scores: Nightjar's own rules, and ignore files, as git reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from nightjar.inference.storage.local import storage_error


@dataclass(frozen=True)
class Rules:
    """One ignore file. prefix: of the names below it; inner: the way from it down to the job's folder."""

    path: str
    spec: GitIgnoreSpec
    prefix: str = ""
    inner: str = ""

    def says(self, name: str) -> bool | None:
        """True: left out, False: taken in, None: nothing."""
        return self.spec.check_file(self.inner + name.removeprefix(self.prefix)).include


_LOGS = ("*.log", "nohup.out")
"""What commands print into, by custom."""

_EDITORS = ("*.swp", "*.swo", "*~", ".#*", "\\#*#")
"""What vim, emacs and others keep beside a file while it is open, and what it was before."""

_TOOLS = (".nfs*", ".coverage", ".coverage.*", ".*_history", ".viminfo", ".lesshst", "prefect.db", "prefect.db-*")
"""What NFS keeps of a file that was deleted while it was open, what coverage.py counts, what was typed, runs of old."""

_PROGRAMS = (
    *(".cache/", ".local/", "/.config/gcloud/", ".prefect/", ".ray/", ".nv/", ".triton/", ".ipython/"),
    *(".ssh/", ".gnupg/", ".aws/", ".azure/", ".kube/", ".docker/"),
)
"""What programs keep in a home folder: they write there whenever they run, and some of it is keys."""

BUILT_IN = tuple(
    Rules(why, GitIgnoreSpec.from_lines(patterns))
    for why, patterns in {
        "a log": _LOGS,
        "an editor's own file": _EDITORS,
        "a tool's own file": _TOOLS,
        "a program's own folder": _PROGRAMS,
    }.items()
)
"""They come before all ignore files, so that one may take a file in: `!rules.log`."""


def read_rules(path: Path, prefix: str = "", inner: str = "") -> Rules:
    """Those of an ignore file."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise storage_error(error, str(path)) from error
    return Rules(str(path), GitIgnoreSpec.from_lines(lines), prefix, inner)


def ignored_by(name: str, rules: tuple[Rules, ...]) -> str:
    """The ignore file that leaves a name out, '' for none: the innermost one that says anything decides."""
    for rule in reversed(rules):
        if (said := rule.says(name)) is not None:
            return rule.path if said else ""
    return ""
