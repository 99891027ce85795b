"""A small server with the answers of the Hugging Face Hub that its client asks for: a revision, its files, a file."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class Hub:
    """Repositories by name and commit. branches: what each branch points to. asked: the paths of all requests."""

    def __init__(self) -> None:
        self.commits: dict[tuple[str, str], dict[str, bytes]] = {}
        self.branches: dict[tuple[str, str], str] = {}
        self.asked: list[str] = []
        self.broken = 0

    def push(self, name: str, folder: Path, branch: str = "main") -> str:
        """A new commit on a branch. Returns it."""
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[name, commit] = files
        self.branches[name, branch] = commit
        return commit

    def answer(self, path: str) -> tuple[int, Any, dict[str, str]]:
        """Status, content, and headers."""
        for (name, commit), files in self.commits.items():
            revisions = {commit, *(branch for (of, branch), at in self.branches.items() if (of, at) == (name, commit))}
            for revision in revisions:
                if path in {f"/api/models/{name}/revision/{revision}", f"/api/models/{name}"}:
                    return (
                        200,
                        {
                            "id": name,
                            "sha": self.branches.get((name, "main"), commit) if path.endswith(name) else commit,
                        },
                        {},
                    )
                if path == f"/api/models/{name}/tree/{revision}":
                    listed = [
                        {"type": "file", "path": each, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                        for each, content in files.items()
                    ]
                    return 200, listed, {}
                prefix = f"/{name}/resolve/{revision}/"
                if path.startswith(prefix) and (file := path.removeprefix(prefix)) in files:
                    tag = hashlib.sha1(files[file]).hexdigest()
                    return 200, files[file], {"ETag": f'"{tag}"', "X-Repo-Commit": commit}
        known = any(f"/{name}/" in f"{path}/" for name, _ in self.commits)
        code = "RevisionNotFound" if known else "RepoNotFound"
        return 404, {"error": "not found"}, {"X-Error-Code": code}


@contextmanager
def hub_server() -> Iterator[tuple[Hub, str]]:
    """A running server and its address."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(path)
            status, content, headers = (503, {}, {}) if hub.broken else hub.answer(path)
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 (the library's name)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
