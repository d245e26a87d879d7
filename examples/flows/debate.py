"""A debate of two policies over one problem: Alice solves, Bob criticises, Alice answers, in turns."""

from typing import Any

SPEAKERS = ("alice_infer", "bob_infer")
"""The generators of the `<->` edge, in the order in which they speak."""
TASKS = (
    "Solve the problem. Put your final answer in \\boxed{}.",
    "Find the first mistake in the solution, or say that there is none. Do not solve the problem yourself.",
)


class Debate:
    """The protocol is Gymnasium's: `reset` gives the first message, `step` takes a turn and gives the next one.

    `info["agent"]` names whose turn is next.
    """

    def __init__(self, rounds: int = 3) -> None:
        self.rounds = rounds
        self.problem = ""
        self.turns: list[dict[str, str]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """`options` holds the row of the data: its prompt and the columns that it keeps."""
        self.problem = str((options or {})["prompt"])
        self.turns = []
        return self._messages(), {"agent": SPEAKERS[0]}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take one speaker's turn. Nothing is rewarded here: the rewards read the transcript."""
        self.turns.append({"agent": self._speaker(), "text": action})
        done = len(self.turns) >= 2 * self.rounds
        return self._messages(), 0.0, done, False, {"agent": self._speaker(), "transcript": list(self.turns)}

    def _speaker(self) -> str:
        return SPEAKERS[len(self.turns) % 2]

    def _messages(self) -> list[dict[str, str]]:
        said = "\n\n".join(f"{turn['agent']}: {turn['text']}" for turn in self.turns)
        content = f"{self.problem}\n\n{said}".strip()
        task = TASKS[len(self.turns) % 2]
        return [{"role": "system", "content": task}, {"role": "user", "content": content}]
