"""Environments in place of those that a model of random weights cannot play, or this machine has not.

Takes a flow's file, writes it with others: a Sokoban in which every character is a move, for GEM's, which asks for a
word in a box; a phone that shows text, for one on a cable.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

WORLDS: Mapping[str, str] = {
    'env: "gem:game:Sokoban-v0", args: {boxes: 1}': 'env: "flowrl:sokoban", args: {any_text: true}',
    'env: "mobile.py:Android"': 'env: "phone.py:Phone"',
}
PHONE = '''
"""A phone that shows text: what is typed goes to the screen, and the task is done when it has a vowel."""


class Phone:
    def reset(self, *, seed=None, options=None):
        self.screen = []
        return f"Task: {options['prompt']}. The screen is empty.", {}

    def step(self, action):
        self.screen.append(action)
        done = any(letter in action for letter in "aeiou")
        return f"The screen shows {self.screen[-1]!r}. Next?", float(done), done, False, {}
'''


def stand_in_worlds(flow: Path) -> None:
    """Write the flow anew, and what it then names."""
    text = flow.read_text()
    for old, new in WORLDS.items():
        text = text.replace(old, new)
    flow.write_text(text)
    (flow.parent / "phone.py").write_text(PHONE)
