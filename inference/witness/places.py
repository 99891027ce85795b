"""Places whose reads are not reported, because no score depends on them or the identity covers them."""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.util import source_from_cache
from pathlib import Path

from nightjar.inference.predictors.adapter import frameworks

_SYSTEM = (
    *("/proc/", "/sys/", "/dev/", "/lib/", "/lib64/", "/bin/", "/sbin/", "/usr/lib/", "/usr/lib64/", "/usr/libexec/"),
    *("/usr/bin/", "/usr/sbin/", "/usr/include/", "/usr/local/cuda", "/usr/local/nvidia/", "/usr/lib/wsl/"),
    *("/opt/nvidia/", "/opt/rocm", "/usr/share/zoneinfo/", "/usr/share/locale/", "/usr/share/i18n/"),
    *("/usr/share/fonts/", "/usr/share/ca-certificates/", "/usr/share/mime/", "/usr/share/terminfo/"),
    *("/usr/share/hwdata/", "/usr/share/libdrm/", "/usr/share/nvidia/", "/var/cache/fontconfig/", "/run/systemd/"),
    *("/run/nvidia", "/etc/ssl/", "/etc/pki/", "/etc/ca-certificates", "/etc/fonts/", "/etc/alternatives/"),
    *("/etc/ld.so.", "/etc/terminfo/", "/etc/nvidia", "/etc/OpenCL/", "/etc/libibverbs.d/"),
)
"""Beginnings of paths: the operating system's own files, its devices and drivers."""

_ETC = re.compile(
    "/etc/(localtime|timezone|resolv.conf|hosts?|host.conf|hostname|nsswitch.conf|gai.conf|passwd|group|services|"
    "protocols|mime.types|os-release|lsb-release|debian_version|machine-id|locale.conf|locale.alias|inputrc)$"
)
"""Files of /etc that are the system's own; other files there may be somebody's configuration."""

_HOME = (
    *(".cache/fontconfig/", ".cache/matplotlib/", ".cache/mesa_shader_cache", ".nv/", ".triton/", ".aws/", ".netrc"),
    ".config/matplotlib/",
)
"""Below the home folder: credentials, and caches that libraries compute again. The Hub's cache has weights, and
counts."""

WIDE = frozenset({"/", "/home", "/tmp", "/var/tmp", "/usr", "/usr/local", "/var", "/etc", os.path.expanduser("~")})  # noqa: PTH111

_SHARED_MEMORY = re.compile(r"/dev/shm/(?!(plasma|sem\.|psm_|pym-|ray_))")
_RAY_SESSION = re.compile(
    r"/session_\d{4}(-\d\d){2}_\d\d(-\d\d){2}_\d+_\d+/(?!runtime_resources/(working_dir|py_modules)_files/)"
)
"""Ray's own session files, but not the code that somebody sent with a Ray job."""

_COMPILED = re.compile(r"^/(var/)?tmp/(triton_|numba_)")

MADE_MOST = 10_000
"""The most files of its own that a process remembers, to bound the memory."""


class Places:
    """Decides which paths are not reported: the interpreter's, the system's, the covered ones, and files of this
    process.

    variables: environment variables that the process set itself. written: files that it wrote, whoever created them.
    """

    def __init__(self, home: str, covered: Iterable[str]) -> None:
        self.home = os.path.realpath(home) + "/"
        self.variables: set[str] = set()
        self.written: set[str] = set()
        self._given = frozenset(os.path.realpath(path) for path in (home, *covered))
        self._made: set[str] = set()

    def uncovered(self, path: str | bytes | os.PathLike[str], folders: bool = False) -> str | None:
        """The absolute path of an existing file (or folder, with `folders`) that nothing covers; else None."""
        lexical = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 (links are resolved only where it matters)
        if lexical.startswith(_interpreter()) or _is_system(lexical):
            return None
        real = os.path.realpath(lexical)
        if _is_system(real) or self._is_covered(real):
            return None
        if os.path.isdir(real):  # noqa: PTH112 (a Path for each would cost more)
            if not folders or self._is_wide(real):
                return None
        elif not os.path.exists(real):  # noqa: PTH110
            return None
        # For a link from the snapshot to outside, its target matters.
        return real if lexical.startswith(self.home) else lexical

    def _is_covered(self, real: str) -> bool:
        if not self._given.isdisjoint(upward(source_of(real))):
            return True
        return bool(self._made) and any(path in self._made for path in upward(real))

    def _is_wide(self, folder: str) -> bool:
        """Whether a folder is so wide that it tells nothing, because covered files are in it, too."""
        return folder in WIDE or any(f"{place}/".startswith(folder + "/") for place in (*self._given, *_interpreter()))

    def made(self, path: str | bytes | os.PathLike[str]) -> None:
        """Note that this process creates this file or folder, so that reading it later is not reported."""
        real = os.path.realpath(os.fsdecode(path))
        if len(self.written) < MADE_MOST:
            self.written.add(real)
            # An audit event comes before the act, so a file that exists already was made by somebody else.
            if not os.path.exists(real):  # noqa: PTH110
                self._made.add(real)

    def moved(self, source: str | bytes | os.PathLike[str], target: str | bytes | os.PathLike[str]) -> None:
        """Note that a file of this process gets another name: libraries write a temporary file, then rename it."""
        if os.path.realpath(os.fsdecode(source)) in self._made:
            self._made.add(os.path.realpath(os.fsdecode(target)))


def upward(path: str) -> Iterator[str]:
    """A path and the folders above it, without the root."""
    while path and path != "/":
        yield path
        path = path.rpartition("/")[0]


def source_of(path: str) -> str:
    """The source file of cached bytecode; for any other file the path itself."""
    if path.endswith(".pyc"):
        with suppress(ValueError):  # bytecode without its source
            return source_from_cache(path)
    return path


def is_installed(path: object) -> bool:
    """Whether a path belongs to the interpreter or its packages. A fast check; also takes None and file descriptors."""
    return path.startswith(_interpreter()) if isinstance(path, str) else path is None or isinstance(path, int)


def _is_system(path: str) -> bool:
    if path.startswith(_scratch()):
        return True
    if path.startswith(_SYSTEM):
        return not _SHARED_MEMORY.match(path)
    if _ETC.match(path) or _COMPILED.match(path) or _RAY_SESSION.search(path):
        return True
    return path.startswith(_home())


@lru_cache(1)
def _scratch() -> tuple[str, ...]:
    return tuple(prefix for framework in frameworks() for prefix in framework.scratch)


@lru_cache(1)
def _home() -> tuple[str, ...]:
    home = os.path.expanduser("~")  # noqa: PTH111 (without a home, Path raises)
    return tuple(f"{home}/{name}" for name in _HOME)


@lru_cache(1)
def _interpreter() -> tuple[str, ...]:
    """Beginnings of paths: the standard library, the installed packages, Nightjar itself."""
    paths = {path for name, path in sysconfig.get_paths().items() if name != "data"}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    standard = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    paths |= {entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages", f"/{standard}"))}
    names = (f"lib/python{sys.version_info[0]}.{sys.version_info[1]}", f"lib/libpython{sys.version_info[0]}", "ssl")
    for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}:
        paths |= {str(Path(prefix, name)) for name in (*names, "bin", "pyvenv.cfg")}
        if prefix not in {"/", "/usr", "/usr/local"}:
            paths |= {str(Path(prefix, "lib"))}
    here = str(Path(__file__).parents[1])
    flows = str(Path(__file__).parents[2] / "flows")
    paths |= {here, flows, *(os.path.realpath(path) for path in (here, flows))}
    # A library's name continues after the prefix (libpython3.11.so); the others are folders or whole files.
    return tuple(path if re.search(r"libpython|\.zip$|\.cfg$", path) else path + "/" for path in paths if path)
