"""The code of a job: the modules that it names, the modules that these import, and the files that these name.

The search is static: it runs none of the code. A process that scores sees a copy of what is found and nothing else of
the job's folder. A file that the search misses therefore cannot make a stale result, and opening it is an error.
"""

from __future__ import annotations

import ast
import glob
import os
import re
import string
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import EXTENSION_SUFFIXES
from itertools import islice, product
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec, PathSpec

from nightjar.inference.errors import JobError, NightjarError
from nightjar.inference.identity.packages import in_environment, is_environment, is_installed, is_litter
from nightjar.inference.input.listing import takes_in
from nightjar.inference.job.finding import folder_of
from nightjar.inference.job.model import Job
from nightjar.inference.job.modeljob import model_jobs, modules_of
from nightjar.inference.messages import nearest

MOST_FILES = 20_000
"""The most files of code, because each is read and hashed when a run begins."""

MOST_BYTES = 8 << 30
"""The most bytes of code, because reading them takes many seconds each time."""

KEYS = GitIgnoreSpec.from_lines(
    (
        *(".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", ".envrc", ".netrc", ".pgpass", ".npmrc"),
        *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "id_rsa", "id_ecdsa", "id_ed25519"),
        *(".pypirc", ".git-credentials", "application_default_credentials.json"),
        *("secrets.*", "credentials.*", "service[-_]account*.json", "serviceaccount*.json", "!*.py"),
    )
)
"""Usual names of files that hold keys or passwords. The copy is kept with the output, where readers see it: only a job
that names such a file in `model.code` publishes it."""

_NEVER = {"__pycache__", ".git", ".hg", ".svn", "node_modules"}
MODULE_ENDS = (".py", *EXTENSION_SUFFIXES, ".pyc")
"""How the names of a module's files end."""

_LONGEST = 255

_CODE = r"%[-+ #0-9.]*([a-zA-Z])"
"""A code of `strftime`."""

_CODES = rf"{_CODE}(?:%[-+ #0-9.]*[a-zA-Z])*"
"""Codes one after the other, as `%Y%m%d`: one wildcard, because several are tried in all their lengths."""

_HOLE = re.compile(rf"\{{[^{{}}]*\}}|{_CODE}")
"""A place in a text that the code fills in: `vocab_{lang}.json` names `vocab_*.json`."""

_DIGITS = "YymdHMSIjUWwuGVFTRDCgfs"
"""The codes of dates that begin with a digit."""

_TELLING = re.compile(r"\w\w")
"""What a pattern needs besides its wildcards: `*.*` would name every file."""


@dataclass(frozen=True)
class Code:
    """Files of a job's folder."""

    files: Mapping[str, str] = field(default_factory=dict)
    """Path of each file, by its name in the folder."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each file."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why each file is code: "model.uses", "predict.py:3", "model.options" or "model.code"."""

    installed: tuple[str, ...] = ()
    """First names of the modules that the job names and that are installed packages."""


def find_code(job: Job) -> Code:
    """The files that score; none if the job names no code of the user's.

    Raises:
        JobError: A module cannot be found or read, a pattern matches nothing, or the files are too many. Names the key.
    """
    modules = modules_of(job)
    options = [[each.model.options, each.preprocess.options if each.preprocess else {}] for each in model_jobs(job)]
    return _Search(job).found(modules, job.code, texts_of(options) if modules else ())


def find_objects(job: Job, objects: Mapping[str, str]) -> Code:
    """The files that objects of the user's need which do not score. objects: "module:name" by key of the job.

    Raises:
        JobError: As `find_code`.
    """
    return _Search(job).found({key: spec.partition(":")[0] for key, spec in objects.items()})


def names_beside(job: Job, code: Code) -> tuple[str, ...]:
    """The other files of the job's folder, at most as many as code may have, without input, output and model."""
    search = _Search(job)
    names = (path.relative_to(search.folder).as_posix() for path in search.below(search.folder))
    return tuple(islice((name for name in names if name not in code.files), MOST_FILES))


def data_of(job: Job) -> Callable[[str], bool]:
    """Tells of a file or folder whether it is input, labels or output of the job on any date, or its model.

    The files that `input.list` names are none of it: only where a run begins is the list read, and workers compare.
    """
    given = job.input.model_copy(update={"uris": ()}) if job.input.list_ else job.input
    return _Search(job.model_copy(update={"input": given})).is_data


def importable_places(folder: str) -> list[str]:
    """Folders in the job's folder where modules are found: itself, and others on the path, as `src/`."""
    places = [""]
    for entry in sys.path:
        below = os.path.relpath(entry or ".", folder)
        if below != "." and not below.startswith("..") and not in_environment(entry or ".", folder):
            places.append(below.replace(os.sep, "/") + "/")
    return places


def explained(error: NightjarError, cause: BaseException, live: str, copy: str) -> NightjarError:
    """Add a hint to the error, if its cause is that a file or module of the job's folder is not in the copy.

    live: the job's folder, which another node may not see. copy: the folder from which this process scores.
    """
    copy = copy if copy != live else os.devnull  # nothing was copied
    if isinstance(error, JobError):
        for name in _missing(cause, copy):
            if Path(live, name).exists():
                key = ", because it may hold a key or a password" if KEYS.match_file(name) else ""
                return JobError(
                    f"{error}. {name} lies beside the job and is not part of what scores{key}; add it to model.code"
                )
    return error


def _missing(cause: BaseException, copy: str) -> Iterator[str]:
    """The names that the missing file or module can have in the job's folder."""
    names: Iterable[str] = ()
    if isinstance(cause, ModuleNotFoundError) and cause.name:
        words = cause.name.replace(".", "/")
        names = (f"{place}{words}{end}" for place in importable_places(copy) for end in (*MODULE_ENDS, "/"))
    elif isinstance(cause, FileNotFoundError) and isinstance(cause.filename, str):
        names = (os.path.relpath(os.path.realpath(cause.filename), os.path.realpath(copy)),)
    return (name for name in names if not name.startswith("../") and not Path(copy, name).exists())


class _Search:
    """A search for the files of one job's folder."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.folder = folder_of(job)
        self.places = importable_places(str(self.folder))
        self.reasons: dict[str, str] = {}
        self._chosen = PathSpec.from_lines("gitignore", job.code)  # the last pattern that matches decides
        self._unread: list[str] = []
        self._tried: set[str] = set()
        self._listed: dict[Path, list[str]] = {}

    def found(self, modules: Mapping[str, str], code: Iterable[str] = (), options: Iterable[str] = ()) -> Code:
        """The files of these modules (by key of the job), of patterns and texts of the job, and of everything that they
        import or name.
        """
        installed = []
        for key, module in modules.items():
            if not self._is_own(key, module):
                installed.append(module.partition(".")[0])
        for text in options:
            self._add_named(text, [self.folder], "model.options")
        self._add_chosen(tuple(code))
        while self._unread:
            self._follow(self._unread.pop())
        files = {name: str(self.folder / name) for name in sorted(self.reasons)}
        sizes = {name: _size(path) for name, path in files.items()}
        if len(files) > MOST_FILES or sum(sizes.values()) > MOST_BYTES:
            raise self._too_much(sizes)
        return Code(files, sizes, dict(self.reasons), tuple(dict.fromkeys(installed)))

    def _too_much(self, sizes: Mapping[str, int]) -> JobError:
        """The error of too much code. It names the line or key with the most files, or with the most bytes."""
        weights: Counter[str] = Counter()
        for name, size in sizes.items():
            weights[self.reasons[name]] += 1 if len(sizes) > MOST_FILES else size
        why = weights.most_common(1)[0][0]
        named = [name for name in sizes if self.reasons[name] == why]
        shared = os.path.commonpath([os.path.dirname(name) for name in named])  # noqa: PTH120 (text)
        largest = f"{shared}/" if shared else max(named, key=sizes.__getitem__)
        return JobError(
            f"model.code: the code names {len(sizes):,} files of {sum(sizes.values()):,} bytes in {self.folder}, "
            f"and may name {MOST_FILES:,} of {MOST_BYTES >> 30} GiB; most of it is {largest} ({why}). "
            f"Leave it out with `model.code: ['!{largest}']`"
        )

    def _is_own(self, key: str, module: str) -> bool:
        """Add a module that the job names. False if it belongs to an installed package.

        Raises:
            JobError: It is in neither, or is not valid Python. Names the key.
        """
        self._add_module(module, key)
        words = module.replace(".", "/")
        ends = *MODULE_ENDS, *(f"/__init__{each}" for each in MODULE_ENDS)
        names = [f"{place}{words}{end}" for place in self.places for end in ends]
        if own := [name for name in names if name in self.reasons]:
            for name in own:
                if name.endswith(".py"):
                    _check_syntax(key, self.folder / name)
            return True
        top = module.partition(".")[0]
        if not any(self._module(place + top) for place in self.places) and is_installed(top, str(self.folder)):
            return False
        for path in (self.folder / name for name in names if (self.folder / name).is_file()):
            why = "is left out by `!` in model.code; take that pattern out"
            if self.is_data(str(path)):
                why = "lies in the job's model, input or output, where no code is looked for; move it beside the job"
            raise JobError(f"{key}: {path} {why}")
        known = {
            path.relative_to(self.folder).with_suffix("").as_posix().replace("/", ".")
            for path in self.below(self.folder)
            if path.suffix == ".py"
        }
        raise JobError(
            f"{key}: there is no module {module!r} in {self.folder} or among the installed packages"
            + nearest(module, known)
        )

    def _add_module(self, module: str, why: str) -> None:
        """Add a module; a package whole. Nothing if it is not in the folder."""
        if module in self._tried:
            return
        self._tried.add(module)
        words = module.split(".")
        for place in self.places:
            if not self._may_have(self.folder / place, words[0]):
                continue
            for depth in range(1, len(words) + 1):
                name = place + "/".join(words[:depth])
                if any((self.folder / f"{name}/__init__{end}").is_file() for end in MODULE_ENDS):
                    for path in self.below(self.folder / name):
                        self._add(path, why)
                    return
                if own := self._module(name):
                    for path in own:
                        self._add(path, why)
                    return

    def _module(self, name: str) -> list[Path]:
        """The files of a module that is no package: its source, what is compiled of it, or both."""
        return [path for end in MODULE_ENDS if (path := self.folder / f"{name}{end}").is_file()]

    def _add_named(self, text: str, bases: list[Path], why: str) -> None:
        """Add the files, folders and modules that a text of the code names, looked up in each of the bases."""
        text = text.lstrip("/")  # of an f-string, or of a text that is joined to a folder
        if not 0 < len(text) <= _LONGEST or not text.isprintable():
            return
        if all(map(str.isidentifier, text.split("."))):
            self._add_module(text, why)
        pattern = _HOLE.sub("*", text)
        # What is joined to a folder by a hole, as f"{HERE}/words_{lang}.txt", lies in that folder.
        for each, base in product(dict.fromkeys((pattern, pattern.removeprefix("*/"))), bases):
            if not self._may_have(base, each):
                continue
            for place in (os.path.normpath(base / each), *self._matching(base, each)):
                if place.startswith(f"{self.folder}/") and Path(place) not in bases:
                    folder = os.path.isdir(place)  # noqa: PTH112 (for each text)
                    for path in self.below(Path(place)) if folder else [Path(place)]:
                        self._add(path, why)

    def _matching(self, base: Path, pattern: str) -> list[str]:
        """The files and folders that a pattern names; none of one that would name every file."""
        telling = map(_TELLING.search, (pattern.rpartition("/")[2], pattern.partition("/")[0]))
        if not glob.has_magic(pattern) or not any(telling):
            return []
        if "**" not in pattern.split("/"):
            return [os.path.normpath(each) for each in glob.glob(f"{glob.escape(str(base))}/{pattern}")]  # noqa: PTH207
        # Not with glob, which walks links in circles.
        spec = PathSpec.from_lines("gitignore", ["/" + pattern.replace("\\", "\\\\")])
        return [str(path) for path in self.below(base) if spec.match_file(path.relative_to(base).as_posix())]

    def _may_have(self, folder: Path, pattern: str) -> bool:
        """Whether a name in the folder begins as the pattern does. A generated module has many texts that name none."""
        begin = re.split(r"[/*?\[]", pattern, maxsplit=1)[0]
        if begin in {"", ".", ".."}:
            return True
        if folder not in self._listed:
            try:
                self._listed[folder] = sorted(os.listdir(folder))  # noqa: PTH208 (names)
            except OSError:
                self._listed[folder] = []
        names = self._listed[folder]
        index = bisect_left(names, begin)
        return index < len(names) and names[index].startswith(begin)

    def _add_chosen(self, patterns: tuple[str, ...]) -> None:
        """Add what `model.code` names. A file of keys must be named whole."""
        wanted = [each.lstrip("/") for each in patterns if not each.startswith("!")]  # a slash anchors a pattern
        for name in wanted:
            if not Path(os.path.normpath(self.folder / name)).is_relative_to(self.folder):
                raise JobError(
                    f"model.code: {name} lies outside {self.folder}; copy the file into this folder, or link it"
                )
        for name in wanted:
            if (self.folder / name).is_file():
                self._add(self.folder / name, "model.code", named=True)
        unmatched = {name: PathSpec.from_lines("gitignore", [name]) for name in wanted if name not in self.reasons}
        for path in self.below(self.folder, litter=any("/." in f"/{name}" for name in unmatched)) if unmatched else ():
            name = path.relative_to(self.folder).as_posix()
            if self._chosen.check_file(name).include:
                self._add(path, "model.code")
            unmatched = {each: spec for each, spec in unmatched.items() if not spec.match_file(name)}
        if unmatched:
            raise JobError(f"model.code: {', '.join(unmatched)} matches no file of {self.folder}")

    def _add(self, path: Path, why: str, *, named: bool = False) -> None:
        name = path.relative_to(self.folder).as_posix()
        if name in self.reasons or not path.is_file():
            return
        if not named and (KEYS.match_file(name) or self.is_data(str(path))):
            return
        if self._chosen.check_file(name).include is False:
            return
        self.reasons[name] = why
        if name.endswith(".py"):
            self._unread.append(name)
        log = path.with_name(f"{path.name}-wal")  # what SQLite has not written into a database yet
        if log.is_file() and _size(str(log)):
            self._add(log, why)

    def _follow(self, name: str) -> None:
        """Add what a module imports and names; nothing of one that cannot be parsed, which its import will say."""
        try:
            tree = ast.parse((self.folder / name).read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            return
        above = [self.folder / each for each in Path(name).parents]
        for node in ast.walk(tree):
            match node:
                case ast.Import():
                    for alias in node.names:
                        self._add_module(alias.name, f"{name}:{node.lineno}")
                case ast.ImportFrom():
                    package = Path(name).parts[: -node.level] if node.level else ()
                    module = ".".join([*package, *([node.module] if node.module else [])])
                    for alias in node.names:
                        self._add_module(f"{module}.{alias.name}".strip("."), f"{name}:{node.lineno}")
                case ast.Constant(value=str(text) | bytes(text)):
                    self._add_named(os.fsdecode(text), above, f"{name}:{node.lineno}")
                case ast.JoinedStr():
                    parts = (each.value if isinstance(each, ast.Constant) else "*" for each in node.values)
                    self._add_named("".join(map(str, parts)), above, f"{name}:{node.lineno}")

    def below(self, folder: Path, *, litter: bool = False) -> Iterator[Path]:
        """The files below a folder, also behind links, without caches, environments, input, output and model. litter:
        also what `is_litter` says of.
        """
        seen = set()
        for here, folders, files in os.walk(folder, followlinks=True):
            real = os.path.realpath(here)
            if real in seen or (here != str(self.folder) and is_environment([*folders, *files])):
                folders.clear()
                continue
            seen.add(real)
            # A mount of Kubernetes has copies in folders that begin with two dots, under new names at each mount.
            folders[:] = sorted(
                each
                for each in folders
                if each not in _NEVER and not each.startswith("..") and not self.is_data(f"{here}/{each}")
                if litter or not is_litter(each)
            )
            yield from (Path(here, each) for each in sorted(files) if litter or not is_litter(each))

    def is_data(self, path: str) -> bool:
        """Whether a file or folder is input, labels or output of the job on any date, or its model."""
        return any(_holds(place, each) for each in {path, os.path.realpath(path)} for place in self._data)

    @cached_property
    def _data(self) -> set[str]:
        """Where the data and the model lie, as patterns for any date; none that holds the job's folder itself."""
        job = self.job
        targets = [job.output.uri, *(table.uri for table in job.output.tables)]
        # A file where a run would write is the job's error, which is reported later.
        wrong = set(filter(os.path.isfile, targets))
        dated = map(_on_any_date, job.templates)
        given = {*dated, *job.input.uris, job.input.list_, *job.paths, *targets} - wrong
        places = {each.removeprefix("sqlite://").rstrip("/") for each in given if each}
        places |= {os.path.realpath(each) for each in places if each.startswith("/") and "*" not in each}
        tops = str(self.folder), os.path.realpath(self.folder)
        return {each for each in places if each.startswith("/") and not any(_holds(each, top) for top in tops)}


def _holds(place: str, path: str) -> bool:
    """Whether a path lies in a place, or is the place itself. place: as a pattern."""
    return path.startswith(f"{place}/") or takes_in(place, path) or takes_in(f"{place}/**", path)


def _on_any_date(place: str) -> str:
    """A location with open dates, as a pattern. A date that begins with a letter may be any name."""
    return "".join(
        text + (re.sub(_CODES, lambda code: "[0-9]*" if code[1] in _DIGITS else "*", spec or "%F") if field else "")
        for text, field, spec, _ in string.Formatter().parse(place)
    )


def texts_of(value: Any) -> Iterator[str]:
    """The texts in the value of an option."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from texts_of(each)


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise JobError(f"model.uses: {path} was removed while it was looked at; repeat the command") from error


def _check_syntax(key: str, path: Path) -> None:
    try:
        ast.parse(path.read_bytes(), str(path))
    except OSError:
        return  # the snapshot reads it again, and says what fails
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise JobError(f"{key}: {path}, line {line}: {getattr(error, 'msg', None) or error}") from error
