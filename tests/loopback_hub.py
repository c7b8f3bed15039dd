"""A small model hub on 127.0.0.1: the routes that huggingface_hub and datasets ask for, out of folders on the disk."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Hub:
    """Repositories by (kind, id), each with its revisions.

    Attributes
    ----------
    endpoint : what goes into HF_ENDPOINT.
    requests : every "METHOD /path" that was asked, in order.
    fail : when set, every request is answered with this status and error code.
    """

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], dict[str, Path]] = {}
        self.requests: list[str] = []
        self.fail: tuple[int, str] | None = None
        self.endpoint = ""

    def add(self, repo: str, folder: Path, *revisions: str, kind: str = "models") -> str:
        """Serve a folder under a repository's id and revisions; returns the commit."""
        commit = hashlib.sha1(str(folder).encode()).hexdigest()
        known = self.repositories.setdefault((kind, repo), {})
        known.update(dict.fromkeys((*revisions, commit), folder))
        return commit

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) of a request."""
        if self.fail:
            return _refuse(*self.fail)
        parts = [unquote(part) for part in path.strip("/").split("/")]
        is_api = parts[0] == "api"
        parts = parts[1:] if is_api else parts
        kind = parts.pop(0) if parts[0] in ("models", "datasets") else "models"
        repo, rest = "/".join(parts[:2]), parts[2:]
        if (kind, repo) not in self.repositories:
            return _refuse(404, "RepoNotFound")
        revisions = self.repositories[kind, repo]
        revision = rest[1] if len(rest) > 1 else "main"
        if revision not in revisions:
            return _refuse(404, "RevisionNotFound")
        folder = revisions[revision]
        commit = hashlib.sha1(str(folder).encode()).hexdigest()
        route = rest[0] if rest else "revision"
        if is_api:
            return _json(self._api(route, repo, folder, commit, "/".join(rest[2:])))
        file = folder / "/".join(rest[2:])
        if route != "resolve" or not file.is_file():
            return _refuse(404, "EntryNotFound")
        body = file.read_bytes()
        return 200, {"ETag": f'"{_etag(body)}"', "X-Repo-Commit": commit, "Content-Type": "application/octet-stream"}, body

    def _api(self, route: str, repo: str, folder: Path, commit: str, under: str) -> object:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        names = [path.relative_to(folder).as_posix() for path in files]
        if route == "tree":
            return [
                {"type": "file", "path": name, "size": path.stat().st_size, "oid": _etag(path.read_bytes())}
                for name, path in zip(names, files, strict=True)
                if name.startswith(under)
            ]
        if route == "paths-info":
            return self._api("tree", repo, folder, commit, "")
        return {"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in names], "private": False, "tags": []}


def _etag(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


def _json(value: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()


def _refuse(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"X-Error-Code": code, "X-Error-Message": code, "Content-Type": "application/json"}, b"{}"


@contextlib.contextmanager
def serve() -> Iterator[Hub]:
    """A hub that answers while the block lasts."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            hub.requests.append(f"{self.command} {path}")
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, body = hub.answer(path)
            part, status = _part(self.headers.get("Range"), body, status)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(part))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(part)

        do_HEAD = do_POST = do_GET

        def log_message(self, *_args) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _part(wanted: str | None, body: bytes, status: int) -> tuple[bytes, int]:
    if not wanted or status != 200:
        return body, status
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    return body[int(first) : int(last) + 1 if last else None], 206
