"""Rewards of the debate (07) and of the phone's single actions (09)."""

import json
import math
from typing import Any

from rewards import math as solved

NEAR = 0.14
"""Share of the screen's width and height within which a tap counts as on its target (Bai et al. 2023, AitW)."""


def solver(response: list[str], transcript: list[list[dict[str, Any]]], answer: list[str]) -> list[float]:
    """Alice solves: 1 where her last word has the right answer, less a tenth where she says nothing before it."""
    right = solved(response, answer)
    spoken = [sum(turn["agent"] == "alice_infer" for turn in turns) for turns in transcript]
    return [score - 0.1 * (turns < 2) for score, turns in zip(right, spoken, strict=True)]


def critic(response: list[str], transcript: list[list[dict[str, Any]]], answer: list[str]) -> list[float]:
    """Bob criticises: 1 where the debate ends with the right answer, half of it where Alice began with it."""
    alice = [[turn["text"] for turn in turns if turn["agent"] == "alice_infer"] for turns in transcript]
    first = solved([texts[0] if texts else "" for texts in alice], answer)
    last = solved([texts[-1] if texts else "" for texts in alice], answer)
    heard = [bool(text.strip()) for text in response]
    return [end * (0.5 if start else 1.0) * said for start, end, said in zip(first, last, heard, strict=True)]


def action(response: list[str], action: list[dict[str, Any]]) -> list[float]:
    """1 for the recorded action with its arguments, half for the right kind of action, 0 for anything else."""
    return [_of_action(_parsed(text), want) for text, want in zip(response, action, strict=True)]


def _parsed(text: str) -> dict[str, Any]:
    """The JSON object that a response ends with; empty without one."""
    try:
        found = json.loads(text[text.rindex("{") : text.rindex("}") + 1])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _of_action(found: dict[str, Any], want: dict[str, Any]) -> float:
    if found.get("action") != want["action"]:
        return 0.0
    if "x" in want:
        try:
            away = math.hypot(float(found["x"]) - want["x"], float(found["y"]) - want["y"])
        except (KeyError, TypeError, ValueError):
            return 0.5
        return 1.0 if away <= NEAR else 0.5
    return 1.0 if found.get("text", "") == want.get("text", "") else 0.5
