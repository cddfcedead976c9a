"""A Hub on loopback: it takes one commit, or refuses."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeHub(ThreadingHTTPServer):
    """A Hub that keeps its requests in `files`, `tokens` and `created`."""

    def __init__(self, status: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.files: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.created: list[dict[str, object]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        token = self.headers.get("Authorization", "")
        self.server.tokens.add(token)
        if self.server.status != 200:
            # It quotes the token, as a server might: the push must not print it.
            self._answer({"error": f"no right to write with {token}"}, self.server.status)
        elif self.path == "/api/repos/create":
            self.server.created.append(json.loads(body))
            self._answer({"url": f"{self.server.url}/me/model"})
        elif "/preupload/" in self.path:
            files = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
            ]
            self._answer({"files": modes})
        elif "/commit/" in self.path:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    value = entry["value"]
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
            self._answer({"commitUrl": f"{self.server.url}/me/model/commit/1", "commitOid": "1"})
        else:
            self._answer({"success": True, "errors": [], "warnings": []})

    def _answer(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep stderr clean."""


@contextmanager
def fake_hub(status: int = 200) -> Iterator[FakeHub]:
    """Serve a Hub with this status for every request."""
    hub = FakeHub(status)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
