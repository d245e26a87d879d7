"""Reward functions that do what no function should: the file that the tests' process of its own runs."""

from __future__ import annotations

HOSTILE = '''
import ctypes, os, signal, subprocess, sys, time

def fine(response):
    return [float(len(text)) for text in response]

def forever(response):
    while True:
        time.sleep(3600)

def deaf(response):
    """An endless loop in C which holds the interpreter, deaf to every signal that can be ignored."""
    for number in range(1, signal.NSIG):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
    ctypes.PyDLL(None).memset(ctypes.create_string_buffer(1), 0, 1)
    sum(iter(int, 1))

def segfault(response):
    print("about to read nothing")
    if "bad" in response:
        ctypes.string_at(0)
    return [1.0 for _ in response]

def leaves(response):
    os._exit(3)

def once(response, flag):
    """Ends its process the first time only."""
    if not os.path.exists(flag):
        open(flag, "w").close()
        os._exit(1)
    return [2.0 for _ in response]

def hog(response):
    held = []
    while True:
        held.append(bytearray(1 << 24))
        held[-1][::4096] = b"x" * len(held[-1][::4096])
        time.sleep(0.005)

kept = []

def leak(response):
    kept.append(b"x" * (24 << 20))
    return [float(len(kept)) for _ in response]

def loud(response):
    for _ in range(100):
        sys.stdout.write("x" * (1 << 20))
    print("\\nlast words")
    raise RuntimeError("too loud")

def forks(response):
    """A child of its own, a shell's, and a daemon that has left its session: all outlive the call."""
    if os.fork() == 0:
        time.sleep(600)
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    return [float(os.getpid()) for _ in response]

def closes(response):
    os.closerange(3, 64)
    return [1.0 for _ in response]

def writes(response):
    for number in range(3, 64):
        try:
            os.write(number, b"\\xff" * 64)
        except OSError:
            pass
    return [1.0 for _ in response]

class Odd:
    def __float__(self):
        raise RuntimeError("no float")
    def __repr__(self):
        raise RuntimeError("no repr")

def odd(response):
    return [Odd() for _ in response]

def pid(response):
    return [float(os.getpid()) for _ in response]

def stops(response):
    secret = 41
    breakpoint()
    return [float(secret) for _ in response]
'''
