"""Rules that leave files of a job's folder out: Nightjar's own, and those of ignore files, read as git reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from nightjar.inference.storage.local import storage_error


@dataclass(frozen=True)
class Rules:
    """The rules of one ignore file. prefix: of the names below it. inner: the path from it to the job's folder."""

    path: str
    spec: GitIgnoreSpec
    prefix: str = ""
    inner: str = ""

    def says(self, name: str) -> bool | None:
        """Whether the rules leave a name out (True), include it (False), or do not mention it (None)."""
        return self.spec.check_file(self.inner + name.removeprefix(self.prefix)).include


_LOGS = ("*.log", "nohup.out")
"""Usual names of files that commands print into."""

_EDITORS = ("*.swp", "*.swo", "*~", ".#*", "\\#*#")
"""Files that vim, emacs and others keep beside an open file, and their backup files."""

_TOOLS = (".nfs*", ".coverage", ".coverage.*", ".*_history", ".viminfo", ".lesshst", "prefect.db", "prefect.db-*")
"""NFS's copies of deleted open files, coverage.py's data, histories of shells, and Prefect's old databases."""

_PROGRAMS = (
    *(".cache/", ".local/", "/.config/gcloud/", ".prefect/", ".ray/", ".nv/", ".triton/", ".ipython/"),
    *(".ssh/", ".gnupg/", ".aws/", ".azure/", ".kube/", ".docker/"),
)
"""Folders that programs keep in a home folder. Programs write there whenever they run, and some contain keys."""

KEYS = GitIgnoreSpec.from_lines(
    (
        *(".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", ".envrc", ".netrc", ".pgpass", ".npmrc"),
        *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "id_rsa", "id_ecdsa", "id_ed25519"),
        *(".pypirc", ".git-credentials", "application_default_credentials.json"),
    )
)
"""Usual names of files that hold keys or passwords. No ignore file includes them: `model.code` must name each."""

BUILT_IN = tuple(
    Rules(why, GitIgnoreSpec.from_lines(patterns))
    for why, patterns in {
        "a log": _LOGS,
        "an editor's own file": _EDITORS,
        "a tool's own file": _TOOLS,
        "a program's own folder": _PROGRAMS,
    }.items()
)
"""These come before all ignore files, so that an ignore file may include a file again: `!rules.log`."""


def read_rules(path: Path, prefix: str = "", inner: str = "") -> Rules:
    """Read the rules of an ignore file."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise storage_error(error, str(path)) from error
    return Rules(str(path), GitIgnoreSpec.from_lines(lines), prefix, inner)


def ignored_by(name: str, rules: tuple[Rules, ...]) -> str:
    """The ignore file that leaves a name out; '' for none. The innermost file that mentions the name decides."""
    for rule in reversed(rules):
        if (said := rule.says(name)) is not None:
            return rule.path if said else ""
    return ""
