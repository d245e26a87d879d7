"""Environments in place of those that a model of random weights cannot play, or this machine has not.

Takes a flow's file, writes it with others: a Sokoban in which every character is a move, for GEM's, which asks for a
word in a box; a phone that shows text, for one on a cable; redness, for a model that scores pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.flowing.stand_ins import GRADED

WORLDS: Mapping[str, str] = {
    'env: "gem:game:Sokoban-v0", args: {boxes: 1}': 'env: "flowrl:sokoban", args: {any_text: true}',
    'env: "mobile.py:Android"': 'env: "phone.py:Phone"',
    'function: "hps.py:score"': 'function: "redness.py:score"',
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

REDNESS = f'''{GRADED}
"""In place of a model that likes pictures: how much redder than green and blue an image is."""

from PIL import ImageStat


def score(prompt, response):
    means = [ImageStat.Stat(image).mean for image in response]
    return [(red - (green + blue) / 2) / 255 for red, green, blue in means]
'''


def stand_in_worlds(flow: Path) -> None:
    """Write the flow anew, and what it then names."""
    text = flow.read_text()
    for old, new in WORLDS.items():
        text = text.replace(old, new)
    flow.write_text(text)
    (flow.parent / "phone.py").write_text(PHONE)
    (flow.parent / "redness.py").write_text(REDNESS)
