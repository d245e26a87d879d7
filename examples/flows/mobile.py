"""An Android phone (an emulator, or a device on a cable) driven through adb, one action a turn."""

import json
import subprocess
from typing import Any

KEYS = {"back": "4", "home": "3", "enter": "66"}
"""Key codes of Android."""


class Android:
    """The protocol is Gymnasium's: `reset` gives the first message, `step` takes a turn and gives the next one.

    A turn is one JSON object: `{"action": "tap", "x": 0.5, "y": 0.2}` (shares of the screen), `type` with `text`,
    `press` with `key`, or `done`.
    """

    def __init__(self, serial: str = "emulator-5554", width: int = 1080, height: int = 2400) -> None:
        self.serial = serial
        self.width = width
        self.height = height

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Back to the home screen. `options` holds the row of the data: its prompt is the task."""
        self._adb("shell", "input", "keyevent", KEYS["home"])
        return self._screen(str((options or {})["prompt"])), {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Do what the policy says. Nothing is rewarded here: the judge reads the whole episode."""
        try:
            wanted = json.loads(action[action.index("{") : action.rindex("}") + 1])
            command = self._command(wanted)
        except (ValueError, KeyError, TypeError) as fault:
            return self._screen(f"That is no action: {fault}"), 0.0, False, False, {}
        if command is not None:
            self._adb("shell", "input", *command)
        return self._screen("Done. What is next"), 0.0, command is None, False, {}

    def _command(self, wanted: dict[str, Any]) -> list[str] | None:
        """Arguments of `adb shell input`; None where the policy says that it is done."""
        match wanted["action"]:
            case "tap":
                return ["tap", str(round(wanted["x"] * self.width)), str(round(wanted["y"] * self.height))]
            case "type":
                return ["text", str(wanted["text"]).replace(" ", "%s")]
            case "press":
                return ["keyevent", KEYS[wanted["key"]]]
            case "done":
                return None
        raise ValueError(f"`{wanted['action']}` is none of tap, type, press, done")

    def _screen(self, text: str) -> list[dict[str, Any]]:
        image = self._adb("exec-out", "screencap", "-p")
        return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]

    def _adb(self, *command: str) -> bytes:
        return subprocess.run(["adb", "-s", self.serial, *command], check=True, capture_output=True).stdout
