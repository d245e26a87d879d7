"""The client of OpenAI-style endpoints, against a server of this host."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from flowrl.backends.rewards.endpoint import KEY, TRIES, Endpoint, EndpointError
from tests.backends.rewards.served import Reply, said, served

KEYS = {"temperature": 0.0}


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)


def echo(body: dict[str, Any], number: int) -> Reply:
    return said("re: " + body["messages"][0]["content"])


def endpoint(url: str, waits: list[float] | None = None, **more: Any) -> Endpoint:
    return Endpoint(url, "reward", sleep=[].append if waits is None else waits.append, **more)


def test_answers_come_in_the_order_of_requests() -> None:
    texts = [f"é{n}" for n in range(40)]
    with served(echo) as server:
        answers = endpoint(server.url).ask(texts, {"temperature": 0.5, "max_tokens": 7}, range(40))
    assert [a.text for a in answers] == [f"re: {text}" for text in texts]
    assert {a.retries for a in answers} == {0}
    body = next(b for b in server.requests if b["messages"][0]["content"] == "é3")
    wanted = {"model": "m", "temperature": 0.5, "max_tokens": 7, "seed": 3}
    assert body == wanted | {"messages": [{"role": "user", "content": "é3"}]}
    assert set(server.keys) == {None}


def test_no_more_at_once_than_asked_for() -> None:
    gate = threading.Barrier(4, timeout=30)

    def together(body: dict[str, Any], number: int) -> Reply:
        gate.wait()  # passes only if four are here at once
        return echo(body, number)

    with served(together) as server:
        answers = endpoint(server.url, parallel=4).ask([f"{n}" for n in range(12)], KEYS, range(12))
    assert all(a.text for a in answers)
    assert server.most == 4


@pytest.mark.parametrize("fault", [(500, {}), (429, {}), (503, b"busy"), (200, None)])
def test_what_passes_is_tried_again(fault: Reply) -> None:
    waits: list[float] = []
    with served(lambda body, number: fault if number < 2 else echo(body, number)) as server:
        (answer,) = endpoint(server.url, waits).ask(["a"], KEYS, [0])
    assert (answer.text, answer.retries) == ("re: a", 2)
    assert waits == [0.5, 1.0]


def test_what_does_not_pass_is_given_up() -> None:
    waits: list[float] = []
    with served(lambda body, number: (500, {"error": "down"})) as server:
        (answer,) = endpoint(server.url, waits).ask(["a"], KEYS, [0])
    assert answer.text is None
    assert answer.fault == f'answered 500: {{"error": "down"}}, {TRIES} times'
    assert waits == [0.5, 1.0, 2.0, 4.0]
    (answer,) = endpoint(server.url).ask(["a"], KEYS, [0])  # nobody listens any more
    assert answer.text is None
    assert "refused" in answer.fault


def test_a_wrong_request_is_not_made_again() -> None:
    with served(
        lambda body, number: (400, {"error": "too long"}) if body["seed"] == 1 else echo(body, number)
    ) as server:
        first, second = endpoint(server.url).ask(["a", "b"], KEYS, [0, 1])
    assert first.text == "re: a"
    assert (second.text, second.fault) == (None, 'answered 400: {"error": "too long"}')
    assert len(server.requests) == 2


def test_after_a_fault_of_all_requests_the_rest_is_not_sent() -> None:
    with served(lambda body, number: (401, {"error": "no key"})) as server:
        answers = endpoint(server.url, parallel=1).ask([f"{n}" for n in range(50)], KEYS, range(50))
    assert {a.fault for a in answers} == {'answered 401: {"error": "no key"}'}
    assert len(server.requests) == 1


def test_redirects_are_not_followed() -> None:
    with served(lambda body, number: (302, {})) as server:
        (answer,) = endpoint(server.url).ask(["a"], KEYS, [0])
    assert answer.fault.startswith("answered 302")


@pytest.mark.parametrize("content", [b"no json", [1], {"choices": []}, {"choices": [{"message": {"content": None}}]}])
def test_an_answer_without_a_text_is_none(content: object) -> None:
    with served(lambda body, number: (200, content)) as server:
        (answer,) = endpoint(server.url).ask(["a"], KEYS, [0])
    assert answer.text is None
    assert answer.fault.startswith("answered with")


def test_a_slow_answer_is_not_waited_for() -> None:
    with served(lambda body, number: time.sleep(0.4) or echo(body, number)) as server:
        (answer,) = endpoint(server.url, timeout_seconds=0.1).ask(["a"], KEYS, [0])
        assert answer.fault == f"was not done after 0.1 s, {TRIES} times"
        time.sleep(0.5)


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "all-5731")
    with served(echo) as server:
        endpoint(server.url).ask(["a"], KEYS, [0])
        assert set(server.keys) == {"Bearer all-5731"}
        monkeypatch.setenv(f"{KEY}_REWARD", "own-5731")
        endpoint(server.url).ask(["a"], KEYS, [0])
        assert server.keys[-1] == "Bearer own-5731"
    with pytest.raises(EndpointError, match="not https") as refused:
        endpoint("http://judge.example/v1")
    assert "5731" not in str(refused.value)
    assert "5731" not in repr(endpoint("https://judge.example/v1"))


@pytest.mark.parametrize("url", ["judge/v1", "ftp://judge/v1", "https:///v1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(EndpointError, match="no http"):
        endpoint(url)


def test_an_endpoint_without_models_is_told() -> None:
    with served(echo, models=(200, {"data": []})) as server:
        (answer,) = endpoint(server.url).ask(["a"], KEYS, [0])
    assert answer.fault == "it lists no model"
