"""Whether the walls stand on this host: code that tries to get out, run before anybody else's.

Takes a sandbox and a file of the run, gives the reasons why it does not hold.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from flowrl.backends.sandbox.sandbox import Sandbox

_CODE = """
import ctypes, json, os, socket, sys
given = json.loads(sys.stdin.read())

def can(what, attempt):
    try:
        done = attempt()
    except Exception:
        return
    if done is not False:
        print(what)

def written(path):
    open(path, "x").close()
    os.remove(path)

def to_network():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as it:
        it.connect(("192.0.2.1", 9))

def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(name + ":"))

def new_user():
    return ctypes.CDLL(None).unshare(0x10000000) == 0

for path in given["files"]:
    can("files of the host are read: " + path, lambda: open(path, "rb").close())
for folder in given["folders"]:
    can("the host's folders are written: " + folder, lambda: written(folder + "/flowrl-probe"))
can("the network is reached", to_network)
can("processes of the host are seen", lambda: len([n for n in os.listdir("/proc") if n.isdigit()]) > 2)
can("rights of the system are held", lambda: int(status("CapEff"), 16) != 0 or int(status("CapBnd"), 16) != 0)
can("new rights can be had", lambda: status("NoNewPrivs") != "1")
can("memory outside of processes can be had", lambda: os.close(os.memfd_create("probe")))
can("namespaces can be made", new_user)
can("secrets of the run are seen", lambda: given["secret"] in json.dumps(dict(os.environ)))
"""
_SECRET = "FLOWRL_SANDBOX_PROBE"


def weaknesses(sandbox: Sandbox, folder: Path) -> list[str]:
    """What code in the sandbox can do that it must not; empty where the walls stand. Raises SandboxError."""
    files = [str(path) for path in sorted(folder.resolve().iterdir()) if path.is_file()][:3]
    folders = [sys.base_prefix, "/usr", os.getcwd(), str(folder.resolve())]
    given = json.dumps({"files": files, "folders": folders, "secret": _SECRET})
    outcome = sandbox.said(_CODE, given)
    return [line for line in outcome.splitlines() if line]
