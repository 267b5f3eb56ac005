"""A server that answers as the Hub does: commits, redirects, ranges, refusals, and worse."""

from __future__ import annotations

import json
import re
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "hidden_size": 4096, "intermediate_size": 14336,
    "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
GOOD_TOKEN = "hf_good"  # noqa: S105 - of a server of our own


def safetensors_file(*tensors: tuple[str, str, list[int], int], padding: int = 0) -> bytes:
    """Return a file of these tensors (name, dtype, shape, bytes), its data zeros."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", "padding": "x" * padding}}
    end = 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


SHARDS = {
    "model-00001-of-00002.safetensors": safetensors_file(
        ("a", "BF16", [1000, 100], 200_000), ("n", "F32", [10], 40)
    ),
    # A header longer than the first piece that is asked for.
    "model-00002-of-00002.safetensors": safetensors_file(
        ("b", "BF16", [50, 100], 10_000), padding=200_000
    ),
}
INDEX = {
    "metadata": {"total_size": 210_040},
    "weight_map": {"a": "model-00001-of-00002.safetensors",
                   "n": "model-00001-of-00002.safetensors",
                   "b": "model-00002-of-00002.safetensors"},
}  # fmt: skip
FILES: dict[str, dict[str, bytes]] = {
    "org/plain": {"config.json": json.dumps(LLAMA).encode()},
    "org/sharded": {
        "config.json": json.dumps(LLAMA).encode(),
        "model.safetensors.index.json": json.dumps(INDEX).encode(),
        **SHARDS,
    },
    "org/single": {
        "config.json": json.dumps(LLAMA).encode(),
        "model.safetensors": safetensors_file(("w", "F16", [2, 3], 12)),
    },
    "org/many": {
        "config.json": json.dumps(LLAMA).encode(),
        "model.safetensors.index.json": json.dumps(
            {
                "metadata": {"total_size": 7_000, "total_parameters": 3_500},
                "weight_map": {f"w{i}": f"model-{i:05}-of-00300.safetensors" for i in range(300)},
            }
        ).encode(),
    },
    "org/broken-shard": {
        "config.json": json.dumps(LLAMA).encode(),
        "model.safetensors": struct.pack("<Q", 40) + b"{" + b"x" * 39,
    },
    "org/empty": {"README.md": b"#"},
    "org/html": {"config.json": b"<!doctype html><title>Sign in</title>"},
    "org/list": {"config.json": b"[1, 2]"},
    "org/nothing": {"config.json": b"{}"},
    "org/nan": {"config.json": b'{"model_type": NaN}'},
    "org/huge": {"config.json": b'{"x": "' + b"y" * 9_000_000 + b'"}'},
    "org/gated": {"config.json": json.dumps(LLAMA).encode()},
}
_PATH = re.compile(r"/(?:cdn/)?([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)")


@dataclass
class Served:
    """What a running server was asked, and where it is."""

    url: str
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    redirect_to: str = ""
    with_codes: bool = True
    with_ranges: bool = True
    with_commit: bool = True

    @property
    def paths(self) -> list[str]:
        """Return the paths that were asked for."""
        return [path for path, _ in self.requests]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Served

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer as the Hub would."""
        headers = {name.lower(): text for name, text in self.headers.items()}
        self.served.requests.append((self.path, headers))
        match = _PATH.fullmatch(self.path.partition("?")[0])
        if match is None:
            self._refuse(404, "RepoNotFound")
            return
        repo, revision, file = match.groups()
        special = getattr(self, f"_{repo.partition('/')[2].replace('-', '_')}", None)
        if special is not None and special():
            return
        files = FILES.get(repo)
        if files is None:
            self._refuse(401, "RepoNotFound")
        elif revision not in ("main", "v1", "refs%2Fpr%2F1", COMMIT):
            self._refuse(404, "RevisionNotFound")
        elif file not in files:
            self._refuse(404, "EntryNotFound")
        elif file.endswith((".safetensors", ".gguf")) and not self.path.startswith("/cdn/"):
            self._redirect(f"/cdn{self.path}?signature=1")
        else:
            self._file(files[file])

    def do_HEAD(self) -> None:
        """Answer as a GET without its body."""
        self.do_GET()

    # Models that misbehave; each returns whether it has answered.

    def _gated(self) -> bool:
        token = self.headers.get("authorization")
        if token == f"Bearer {GOOD_TOKEN}":
            return False
        self._refuse(401 if token is None else 403, "GatedRepo")
        return True

    def _renamed(self) -> bool:
        self._redirect(self.path.replace("org/renamed", "org/plain"), 307)
        return True

    def _moved(self) -> bool:
        self._redirect(self.served.redirect_to, 302)
        return True

    def _loop(self) -> bool:
        self._redirect(self.path, 302)
        return True

    def _nowhere(self) -> bool:
        self.send_response(302)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

    def _silent(self) -> bool:
        time.sleep(3)
        return True

    def _dripping(self) -> bool:
        """Send a byte now and then: a socket's own timeout would never end it."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        try:
            for _ in range(30):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        except OSError:
            self.close_connection = True
        return True

    def _endless(self) -> bool:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            while True:
                self.wfile.write(b"x" * 65_536)
        except OSError:
            return True

    def _cut(self) -> bool:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"model_type"')
        self.close_connection = True
        return True

    def _garbage(self) -> bool:
        self.wfile.write(b"this is no HTTP\r\n\r\n")
        self.close_connection = True
        return True

    def _failing(self) -> bool:
        self._refuse(500, "")
        return True

    def _busy(self) -> bool:
        self._refuse(429, "")
        return True

    # Answers

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code and self.served.with_codes:
            self.send_header("X-Error-Code", code)
        if code == "EntryNotFound" and self.served.with_commit:
            self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _redirect(self, to: str, status: int = 302) -> None:
        self.send_response(status)
        self.send_header("Location", to)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _file(self, data: bytes) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if wanted and self.served.with_ranges:
            first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            data = data[first : last + 1]
        else:
            self.send_response(200)
        if self.served.with_commit:
            self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", '"etag"')
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(b"" if self.command == "HEAD" else data)
        except OSError:
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that went away."""


@contextmanager
def fake_hub() -> Iterator[Served]:
    """Run the server on a free port of this machine."""
    served = Served(url="")
    handler = type("Handler", (_Handler,), {"served": served})
    server = _Server(("127.0.0.1", 0), handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
