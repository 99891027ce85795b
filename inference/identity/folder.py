"""Decides which files of a job's folder score: exactly these are part of the identity, and are sent to the cluster.

These are left out: input, output and model (each counts in its own way; by whatever path a link or a mount leads to
them), job files and what belongs to other jobs, version control, caches and virtual environments, and what `.gitignore`
and `.rayignore` name by git's rules. With `model.code` its patterns decide instead, and a file that it names by its
whole path counts wherever it is. Files with keys or passwords count only so: those with their usual names, and those
that fewer people may read than the job file. The files that this command prints into or keeps for itself never count,
because they differ for each command.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pathspec import GitIgnoreSpec

from nightjar.inference.errors import JobError
from nightjar.inference.identity.aliases import Aliases, upward
from nightjar.inference.identity.ignores import (
    BUILT_IN,
    KEYS,
    Rules,
    ignored_by,
    read_rules,
)
from nightjar.inference.identity.neighbours import Neighbours, is_job
from nightjar.inference.identity.ownstate import FileId, OwnState, file_id
from nightjar.inference.identity.packages import importable_places, is_environment, module_files
from nightjar.inference.input.everydate import EveryDate, EveryList, beside, tells_input, whole
from nightjar.inference.input.listing import Places, hidden
from nightjar.inference.job.locations import is_dated
from nightjar.inference.job.model import Job
from nightjar.inference.privatefiles import OTHERS

_NEVER = {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints"}
_NEVER |= {".venv", "venv", "node_modules", ".idea", ".vscode", ".DS_Store"}
_IN_PLACE = {"bin", "include", "lib", "lib64", "share", "pyvenv.cfg"}
"""The parts of a virtual environment; left out if the job's folder itself is one."""

_IGNORE_FILES = (".gitignore", ".rayignore")
_NEVER |= {*_IGNORE_FILES, ".gitattributes", ".gitmodules"}
_RESULTS = {"runs", "publications", "snapshots", "latest", "dates", "job.json"}
"""The parts of an output; left out if the job's folder itself is the output."""

MOST_FILES = 20_000
"""The most files that may score, because each is read and hashed when a run begins."""

MOST_BYTES = 8 << 30
"""The most bytes that may score, because reading them takes many seconds each time."""

_PATTERN = re.compile(r"[*?\[\\]|^[!#]|/$|(^|/)\.\.?(/|$)")
"""Finds the entries of `model.code` that are patterns, not whole paths of files in the folder."""

_JUDGES = "it judges, and does not score"
_PRINTED = "this command prints there"
_WRITTEN = "Nightjar, Prefect or Ray write there"
_INPUT, _OUTPUT = "input.uri", "output.uri"
_SECRET = "it may hold a key or a password"
_NO_CODE = (_PRINTED, _WRITTEN, _INPUT, _OUTPUT)
"""Reasons that leave a file out even if a pattern of `model.code` matches it."""


@dataclass(frozen=True)
class Listing:
    """The files of a job's folder. files: name → path of those that score. sizes: in bytes. left_out: name → reason."""

    files: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def list_code(job: Job) -> Listing:
    """List the files that score the job; none if the job names no code of the user's.

    Raises:
        JobError: There are more than `MOST_FILES` or `MOST_BYTES`. Names `model.code`.
    """
    return _listed(job, job.judging if job.code is None else ()) if job.modules() else Listing()


def list_checks(job: Job) -> Listing:
    """List the files that the job's own checks and accumulators need beside those of `list_code`; none if the job has
    neither.

    These are the modules that nothing names that scores. If `list_code` has not the whole folder, they are all files of
    it.

    Raises:
        JobError: As `list_code`.
    """
    if not job.beside():
        return Listing()
    whole = _listed(job.model_copy(update=job.with_models(lambda model: model.model_copy(update={"code": None}))))
    if needs_folder(job):
        return whole
    own = {name for name in whole.files if is_of(name, job.judging, importable_places(job.folder))}
    return Listing({name: whole.files[name] for name in own}, {name: whole.sizes[name] for name in own}, whole.left_out)


def needs_folder(job: Job) -> bool:
    """Whether the job's own checks and accumulators get the whole folder, because the scoring code is only a part."""
    return not job.modules() or job.code is not None


def is_of(name: str, modules: tuple[str, ...], places: list[str]) -> bool:
    """Whether a file belongs to one of these modules or packages. places: where modules are found in the folder.

    A file that only has a module's name and another end, as `churn.joblib`, is what the code that scores may read.
    """
    return any(
        name.startswith(f"{place}{module}/")
        or (name.startswith(f"{place}{module}.") and name.removeprefix(place) in module_files(module))
        for place in places
        for module in modules
    )


def _listed(job: Job, judging: tuple[str, ...] = ()) -> Listing:
    """The files of the job's folder. judging: modules to leave out because they only judge."""
    folder = Path(job.folder or Path.cwd()).absolute()
    found, held, places = Listing(), 0, importable_places(str(folder))
    for name, path, why in _Walk(folder, job).files():
        ignored = why or (_JUDGES if is_of(name, judging, places) else "")
        if ignored:
            found.left_out[name] = ignored
            continue
        found.files[name], found.sizes[name] = path, _size(path)
        held += found.sizes[name]
        if len(found.files) > MOST_FILES or held > MOST_BYTES:
            much = f"{MOST_FILES:,} files" if len(found.files) > MOST_FILES else f"{MOST_BYTES >> 30} GiB"
            raise JobError(
                f"model.code: {folder} holds more than {much}, and all of it would be part of what scores; list the "
                "files that score in model.code, or name the others in .rayignore"
            )
    return found


def _is(kind: Callable[[], bool]) -> bool:
    """Whether an entry is of a kind; a link to itself is of none, as a link to nothing."""
    with suppress(OSError):
        return kind()
    return False


def _mode(path: str) -> int:
    with suppress(OSError):  # it is gone, or is a link to nothing
        return os.stat(path).st_mode  # noqa: PTH116 (for each file)
    return 0


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise JobError(f"model.uses: {path} was removed while it was looked at; repeat the command") from error


class _Walk:
    """A walk through a job's folder."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.folder = folder
        self.job = job
        self._state = OwnState()
        self._chosen = None if job.code is None else GitIgnoreSpec.from_lines(job.code)

    def files(self) -> Iterator[tuple[str, str, str]]:
        """Yield relative name, path, and the reason why the file is left out ('' for none)."""
        jobs: list[Path] = []
        others: list[tuple[str, str, str]] = []
        for found in self._below("", (), self._above()):
            if is_job(found[1]):
                jobs.append(Path(found[1]))
            elif self._chosen is None or self._chosen.match_file(found[0]):
                others.append(found)
        shared = any(_mode(str(each)) & OTHERS for each in jobs)
        neighbours = Neighbours(self.folder, jobs, with_models=self._chosen is None)
        # Files of other nights are many, so files that are left out for other reasons come first.
        for name, path, ignored in sorted(others, key=lambda found: found[2] in {_INPUT, _OUTPUT}):
            if name in self._named:
                continue
            if ignored in _NO_CODE:
                yield name, path, ignored
            elif theirs := neighbours.owner(path):
                yield self._relative(theirs.place), theirs.place, theirs.job
            elif KEYS.match_file(name) or (shared and not name.endswith((".py", "/")) and not _mode(path) & OTHERS):
                yield name, path, _SECRET
            else:
                yield name, path, "" if self._chosen is not None else ignored
        yield from ((name, str(self.folder / name), "") for name in sorted(self._named))

    @cached_property
    def _named(self) -> set[str]:
        """The files that `model.code` names by their whole paths."""
        if self._chosen is None:
            return set()
        names = {each.removeprefix("/") for each in self.job.code or () if not _PATTERN.search(each)}
        found = {name for name in names if self._chosen.match_file(name) and (self.folder / name).is_file()}
        return {name for name in found if not self._is_printed(str(self.folder / name))}

    def _is_printed(self, path: str) -> bool:
        """Whether this process's standard output or error goes into the file, which so differs for each command."""
        with suppress(OSError):  # it is gone
            return bool(self._printed) and file_id(os.stat(path)) in self._printed  # noqa: PTH116 (for each file)
        return False

    @cached_property
    def _printed(self) -> set[FileId]:
        found = set()
        for fd in (1, 2):
            with suppress(OSError):  # some programs start commands with these closed
                if stat.S_ISREG((about := os.fstat(fd)).st_mode):
                    found.add(file_id(about))
        return found

    def _relative(self, place: str) -> str:
        name = os.path.relpath(place, self.folder)
        return f"{name}/" if os.path.isdir(place) else name  # noqa: PTH112 (text, as a location is)

    def _below(
        self, prefix: str, above: tuple[FileId, ...], rules: tuple[Rules, ...]
    ) -> Iterator[tuple[str, str, str]]:
        here = self.folder / prefix
        names = self._aliases.of(str(here))
        try:
            found = here.stat()
            with os.scandir(here) as items:
                entries = sorted(items, key=lambda item: item.name)
        except OSError as error:
            raise JobError(f"model.code: {here} cannot be read: {error}; name it in .rayignore") from error
        environment = is_environment(entry.name for entry in entries)
        if file_id(found) in above or (environment and prefix):
            return
        above = (*above, file_id(found))
        rules += tuple(read_rules(here / name, prefix) for name in _IGNORE_FILES if (here / name).is_file())
        for entry in entries:
            name = prefix + entry.name
            if entry.name in _NEVER or (environment and entry.name in _IN_PLACE):
                continue
            if entry.name.startswith(".."):  # a mount of Kubernetes has copies there, under new names at each mount
                continue
            other = _is(entry.is_dir) or entry.is_symlink()
            paths = self._aliases.of(entry.path) if other else tuple(f"{each}/{entry.name}" for each in names)
            if not self._own.isdisjoint(paths):
                continue
            if _is(entry.is_dir):
                if any(each.is_place(path) for each in self._dated for path in paths):
                    continue
                never = _WRITTEN if self._state.has(file_id(found), entry) else self._results(paths)
                ignored = never or ignored_by(name + "/", rules)
                if not ignored or (self._chosen is not None and not never):
                    yield from self._below(name + "/", above, rules)
                else:
                    yield name + "/", entry.path, ignored
            elif _is(entry.is_file) and not any(self._is_tonights(name, path) for path in paths):
                never = _PRINTED if self._is_printed(entry.path) else self._results(paths) or self._data(paths)
                yield name, entry.path, never or ignored_by(name, rules)

    def _is_tonights(self, name: str, path: str) -> bool:
        """Whether a file is input of this run's date."""
        if whole(path, self._ends) in self._tonight.exact:
            return True
        if self.job.input.list_:
            kind = self.job.input.format
            of_input = tells_input(path, {kind} if kind else ())
        else:
            of_input = bool(self._data((path,)))
        return of_input and self._tonight.takes(path) and not hidden(name)

    @cached_property
    def _tonight(self) -> Places:
        """The input of this run's date, and the list that names it."""
        listed = self.job.input.list_
        return Places([*self.job.input.uris, *([listed] if listed else [])])

    @cached_property
    def _ends(self) -> tuple[str, ...]:
        """The ends of the files that belong to an input file beside them."""
        return beside(self.job.input.format)

    def _data(self, paths: tuple[str, ...]) -> str:
        """The reason why a file is not code, if one of its paths is input or output of any date; '' if none is."""
        return _INPUT if any(each.takes(path) for each in self._dated for path in paths) else ""

    def _results(self, paths: tuple[str, ...]) -> str:
        """As `_data`, for links into the output or a table, and for parts of an output that contains the folder."""
        return _OUTPUT if any(above in self._written for path in paths for above in upward(path)) else ""

    @cached_property
    def _dated(self) -> list[EveryDate | EveryList]:
        """The input of every date, and the output if it differs by date: both may lie among the code."""
        source, target, *others = self.job.templates
        own_uris = [self.job.input.list_] if self.job.input.list_ else self.job.input.uris
        sources, kind = [source, *others] if source else own_uris, self.job.input.format
        lists = [EveryList(each, kind, Path(self.job.folder)) for each in sources if self.job.input.list_]
        own = [EveryDate(each, kind, self._ends) for each in sources]
        return [*own, *lists, *([EveryDate(target)] if is_dated(target) else [])]

    @cached_property
    def _written(self) -> set[str]:
        """Where tonight's run writes: tables, and the output, or its parts if it contains the job's folder."""
        parts = {os.path.normpath(f"{self.job.output.uri}/{name}") for name in _RESULTS}
        return parts - self._aliases.above(str(self.folder)) | (self._targets & self._own)

    @cached_property
    def _targets(self) -> set[str]:
        return {
            os.path.normpath(uri) for uri in (self.job.output.uri, *(table.uri for table in self.job.output.tables))
        }

    @cached_property
    def _own_places(self) -> set[str]:
        found = {os.path.normpath(place) for place in (*self.job.places, *self.job.paths) if place} | self._targets
        # A file where a run would write is the job's error, which is reported later.
        return found - {place for place in self._targets if os.path.isfile(place)}  # noqa: PTH113 (text, as a location is)

    @cached_property
    def _aliases(self) -> Aliases:
        return Aliases(self._own_places)

    @cached_property
    def _own(self) -> set[str]:
        """The job's own places that are not code, except the folder itself and those above it."""
        return self._own_places - self._aliases.above(str(self.folder))

    def _above(self) -> tuple[Rules, ...]:
        """The rules of the folders above, up to the repository's; none if they leave out the job's folder itself."""
        tops = [self.folder, *self.folder.parents]
        top = next((index for index, each in enumerate(tops) if (each / ".git").exists()), 0)
        rules = []
        for parent in reversed(tops[1 : top + 1]):
            inner = os.path.relpath(self.folder, parent)
            if (file := parent / ".gitignore").is_file():
                rules.append(read_rules(file, inner=inner + "/"))
        below = [ignored_by("", (rule,)) for rule in rules]
        return BUILT_IN if any(below) else (*BUILT_IN, *rules)
