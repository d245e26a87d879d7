"""A small model behind an OpenAI-style endpoint on this host: what it answers is a function of the request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, object]
"""Status, and what stands in the body: JSON, bytes as they are, or None: the connection is closed without a word."""


@dataclass
class Served:
    """What the server has seen."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    most: int = 0
    """Requests at once."""
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def said(text: str) -> Reply:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


@contextmanager
def served(
    answer: Callable[[dict[str, Any], int], Reply], models: Reply = (200, {"data": [{"id": "m"}]})
) -> Iterator[Served]:
    """`answer`: of a request and how often it was made before."""
    seen = Served("")
    counts: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.keys.append(self.headers.get("Authorization"))
            self._reply(*models)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = body["messages"][0]["content"]
            with seen.lock:
                seen.requests.append(body)
                seen.keys.append(self.headers.get("Authorization"))
                number = counts.get(text, 0)
                counts[text] = number + 1
                seen.now += 1
                seen.most = max(seen.most, seen.now)
            try:
                self._reply(*answer(body, number))
            finally:
                with seen.lock:
                    seen.now -= 1

        def _reply(self, status: int, content: object) -> None:
            if content is None:
                self.close_connection = True
                return
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            if status in (301, 302):
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Tests say what they want to know."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    seen.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
