"""The source of the user's code, found without running any of it: part of every shard's identity.

Imports are read from the syntax tree, wherever they stand, and followed through the job's folder. What a
program computes at run time stays unseen: names built from strings, changes to `sys.path`, data files it
reads. `model.version` is the user's word for those. Installed packages are recorded by version and not
followed, but for a package that `uses` or `preprocess` itself names.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from nightjar.inference.errors import JobError
from nightjar.inference.job import Job
from nightjar.inference.predictors.user import folder_of
from nightjar.inference.sentences import nearest


def code_fingerprint(job: Job) -> str:
    """Hash of the source of predictor and preprocess and of everything of the user's that they import.

    Independent of where the folder lies. '' when the job names no code.

    Raises:
        JobError: a module cannot be found, or has a syntax error.
    """
    modules = _named(job)
    sources: dict[str, Path] = {}
    for key, module in modules.items():
        sources |= _sources(key, module, folder_of(job))
    return _digest(sources) if modules else ""


def folder_fingerprint(job: Job) -> str:
    """The same of what lies in the job's folder only: quick enough for each worker to look whether it is there still.

    '' when the job names no code of the folder.

    Raises:
        JobError: a module has a syntax error.
    """
    sources: dict[str, Path] = {}
    for key, module in _named(job).items():
        if _files(folder_of(job), module):
            sources |= _sources(key, module, folder_of(job))
    return _digest(sources) if sources else ""


def _named(job: Job) -> dict[str, str]:
    """The modules that the job names, by key."""
    named = {"model.uses": job.model.uses, "preprocess": job.preprocess}
    return {key: spec.partition(":")[0] for key, spec in named.items() if spec and ":" in spec}


def _digest(sources: dict[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(sources.items()):
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _sources(key: str, module: str, folder: Path) -> dict[str, Path]:
    """Files by a name that does not depend on the machine."""
    top = module.partition(".")[0]
    if _files(folder, module):
        root, followed, strict = folder, None, True
    elif top in sys.stdlib_module_names:
        return {}
    else:
        root, followed, strict = _installed(key, module, folder), top, False
    found = _reachable(key, module, root, followed, strict)
    if not any(_is_module(path, root, module) for path in found):
        known = {_dotted(path, root) for path in root.rglob("*.py")} if strict else set()
        raise JobError(f"{key}: there is no module {module!r} in {root}" + nearest(module, known))
    prefix = "installed" if followed else "folder"
    return {f"{prefix}/{path.relative_to(root).as_posix()}": path for path in found}


def _installed(key: str, module: str, folder: Path) -> Path:
    """The folder that holds the module's top-level package. Looks for it, never imports it."""
    top = module.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # loaded by hand, without a spec
        spec = None
    if spec is None:
        known = {_dotted(path, folder) for path in folder.glob("*.py")}
        raise JobError(
            f"{key}: there is no module {module!r} in {folder} or among the installed packages" + nearest(module, known)
        )
    if spec.submodule_search_locations:
        # A namespace package lies in several folders, one of which may be the job's own.
        roots = [Path(location).parent for location in spec.submodule_search_locations]
        return next(
            (root for root in roots if any(_is_module(p, root, module) for p in _files(root, module))), roots[0]
        )
    return Path(spec.origin or "").parent


def _reachable(key: str, module: str, root: Path, followed: str | None, strict: bool) -> list[Path]:
    """Every file that importing the module may load from `root`; only package `followed` when given."""
    found: dict[Path, None] = {}
    waiting = [module]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or (followed and name.partition(".")[0] != followed):
            continue
        seen.add(name)
        for path in _files(root, name):
            if path not in found:
                found[path] = None
                waiting += _imports(key, path, root, strict)
    return list(found)


def _files(root: Path, module: str) -> list[Path]:
    """The files that importing `module` from `root` runs: its packages' `__init__` and its own."""
    files = []
    place = root
    for word in module.split("."):
        place = place / word
        candidates = [
            place / "__init__.py",
            *(place.with_name(word + end) for end in (".py", *EXTENSION_SUFFIXES)),
        ]
        if file := next((path for path in candidates if path.is_file()), None):
            files.append(file)
        elif not place.is_dir():  # a folder without __init__ is a namespace package
            break
    return files


def _imports(key: str, path: Path, root: Path, strict: bool) -> Iterator[str]:
    """Names of the modules a file may import, wherever in it the import stands."""
    if path.suffix != ".py":
        return
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        if not strict:  # an installed package may carry files for another Python
            return
        line = getattr(error, "lineno", None) or 1
        raise JobError(f"{key}: {path}, line {line}: {getattr(error, 'msg', None) or error}") from error
    package = _dotted(path.parent / "__init__.py", root)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
        elif isinstance(node, ast.Call) and (name := _imported_by_call(node)):
            yield _absolute(name, package)


def _absolute(name: str, package: str) -> str:
    """`..util` seen from package `a.b` is `a.util`."""
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    words = package.split(".") if package else []
    above = words[: len(words) - (level - 1)]
    return ".".join([*above, *filter(None, [name[level:]])])


def _imported_by_call(node: ast.Call) -> str | None:
    """The module of `importlib.import_module("name")` or `__import__("name")` with the name written out."""
    function = node.func
    called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    if called not in {"import_module", "__import__"} or not node.args:
        return None
    name = node.args[0]
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


def _dotted(path: Path, root: Path) -> str:
    words = [*path.relative_to(root).parts[:-1], path.name.partition(".")[0]]
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def _is_module(path: Path, root: Path, module: str) -> bool:
    return _dotted(path, root) == module
