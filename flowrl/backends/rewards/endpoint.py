"""A model behind an OpenAI-style endpoint: requests out, texts in, so many at once, with retries.

Takes a URL and limits, gives the text of each answer or why there is none. A key comes from the environment alone, goes
over TLS or to this host, and stands in no message. Redirects are not followed. Knows no batch and no rewards.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

KEY = "FLOWRL_JUDGE_KEY"
"""Environment variable with the key of judges' endpoints; KEY_ROLE, in capitals, is that of one role."""
PARALLEL = 16
TRIES = 5
FIRST_WAIT_SECONDS = 0.5
"""Before the second try; each further wait is twice as long."""
LONGEST_WAIT_SECONDS = 30.0
TIMEOUT_SECONDS = 120.0
MOST_BYTES = 16 << 20
"""Of one answer."""
SHOWN = 200
"""Most characters of an answer that is shown."""
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Answers after which a later try may go well."""
_HOPELESS = frozenset({401, 403, 404})
"""Answers after which no request will."""
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


class EndpointError(Exception):
    """There is no answer, and why. `hopeless`: there will be none to any request."""

    def __init__(self, told: str, *, hopeless: bool = False) -> None:
        super().__init__(told)
        self.hopeless = hopeless


class _AgainError(Exception):
    """There is no answer yet. `wait`: what the endpoint asks for."""

    def __init__(self, told: str, wait: float | None = None) -> None:
        super().__init__(told)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Answer:
    """`text`, or why there is none; `tries` beyond the first."""

    text: str | None
    fault: str = ""
    retries: int = 0


class Endpoint:
    """`url` up to `/chat/completions`. Raises EndpointError for one that no request can go to."""

    def __init__(
        self,
        url: str,
        role: str,
        parallel: int | None = None,
        timeout_seconds: float | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EndpointError(f"`{url}` is no http or https address", hopeless=True)
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._key = os.environ.get(f"{KEY}_{role.upper()}") or os.environ.get(KEY)
        if self._key and self._tls is None and self._host not in _LOCAL:
            raise EndpointError(f"`{url}` is not https, and the key would be sent in the clear", hopeless=True)
        self._parallel = parallel or PARALLEL
        self._seconds = timeout_seconds or TIMEOUT_SECONDS
        self._sleep = sleep
        self._own = threading.local()
        self._connections: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._model: str | None = None
        self._hopeless: str | None = None

    def ask(self, requests: Sequence[str], sampling: Mapping[str, Any], seeds: Sequence[int]) -> list[Answer]:
        """The answer to each request, in their order. After a fault that all will meet the rest is not asked."""
        self._hopeless = None
        if not requests:
            return []
        pool = ThreadPoolExecutor(min(self._parallel, len(requests)), "judge")
        try:
            return list(
                pool.map(lambda each: self._answer(each[0], sampling, each[1]), zip(requests, seeds, strict=True))
            )
        finally:
            pool.shutdown(cancel_futures=True)
            self.close()

    def close(self) -> None:
        with self._lock:
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()

    def _answer(self, request: str, sampling: Mapping[str, Any], seed: int) -> Answer:
        wait = FIRST_WAIT_SECONDS
        for number in range(TRIES):
            if self._hopeless is not None:
                return Answer(None, self._hopeless, number)
            try:
                asked = {"model": self._served(), "messages": [{"role": "user", "content": request}], **sampling}
                return Answer(_text_of(self._call("POST", "/chat/completions", {**asked, "seed": seed})), "", number)
            except EndpointError as error:
                if error.hopeless:
                    self._hopeless = f"{error}"
                return Answer(None, f"{error}", number)
            except _AgainError as error:
                if number == TRIES - 1:
                    return Answer(None, f"{error}, {TRIES} times", number)
                self._sleep(min(LONGEST_WAIT_SECONDS, max(wait, error.wait or 0.0)))
                wait *= 2
        raise AssertionError("unreachable")

    def _served(self) -> str:
        """The name of the model: the first that the endpoint lists."""
        with self._lock:
            if self._model is None:
                listed = self._call("GET", "/models", None)
                names = [each["id"] for each in listed.get("data", ()) if isinstance(each, dict) and "id" in each]
                if not names:
                    raise EndpointError("it lists no model", hopeless=True)
                self._model = f"{names[0]}"
            return self._model

    def _call(self, verb: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        """One request on this thread's connection, which is opened again after a fault."""
        deadline = time.monotonic() + self._seconds
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = self._connection()
        try:
            connection.request(verb, self._path + path, None if body is None else json.dumps(body).encode(), headers)
            response = connection.getresponse()
            data = _read(connection, response, deadline)
        except TimeoutError:
            self._forget(connection)
            raise _AgainError(f"was not done after {self._seconds:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            self._forget(connection)
            raise _AgainError(f"{error or type(error).__name__}") from None
        if response.status in _AGAIN:
            raise _AgainError(_said(response.status, data), _seconds_of(response.getheader("Retry-After")))
        if response.status != 200:
            raise EndpointError(_said(response.status, data), hopeless=response.status in _HOPELESS)
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise EndpointError(f"answered with what is no JSON: {_shown(data)}")
        return found

    def _connection(self) -> http.client.HTTPConnection:
        known = getattr(self._own, "connection", None)
        if known is not None and known in self._connections:
            return known
        if self._tls is None:
            made = http.client.HTTPConnection(self._host, self._port, timeout=self._seconds)
        else:
            made = http.client.HTTPSConnection(self._host, self._port, timeout=self._seconds, context=self._tls)
        self._own.connection = made
        self._connections.append(made)
        return made

    def _forget(self, connection: http.client.HTTPConnection) -> None:
        connection.close()
        self._own.connection = None
        if connection in self._connections:
            self._connections.remove(connection)


def _read(connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float) -> bytes:
    """The whole answer, until the deadline also where it comes in drops."""
    data = b""
    while not response.isclosed():
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left)
        part = response.read1(1 << 16)
        data += part
        if len(data) > MOST_BYTES:
            raise http.client.HTTPException(f"answered with more than {MOST_BYTES >> 20} MiB")
        if not part:
            break
    if response.length:
        raise http.client.IncompleteRead(data, response.length)
    response.close()  # the connection stays
    return data


def _text_of(answer: Mapping[str, Any]) -> str:
    try:
        text = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        text = None
    if not isinstance(text, str):
        raise EndpointError(f"answered without a text: {_shown(json.dumps(answer).encode())}")
    return text


def _said(status: int, data: bytes) -> str:
    return f"answered {status}: {_shown(data)}"


def _shown(data: bytes) -> str:
    return " ".join(data.decode(errors="replace").split())[:SHOWN]


def _seconds_of(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:  # a date
        return None
