"""Calls of Linux that Python has no name for: namespaces, mounts, rights, filters of system calls.

Runs inside of the sandbox's own processes, which import the standard library only. Each call raises OSError.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any

NEW_MOUNTS, NEW_NAMES, NEW_IPC, NEW_USERS, NEW_PROCESSES, NEW_NETWORK = (
    0x0002_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000,
)  # fmt: skip
"""CLONE_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID and _NEWNET."""
NO_SETUID, NO_DEVICES, NO_PROGRAMS, BIND, RECURSIVE, PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
"""MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC and MS_PRIVATE."""
_ATTRIBUTES_READ_ONLY = 1 | 2 | 4
_DETACH = 2
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _SET_SECCOMP, _DROP_BOUND, _SET_CHILD_SUBREAPER, _NO_NEW_RIGHTS = 1, 4, 22, 24, 36, 38
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

REFUSED_CALLS: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000_003E,
        {
            "memfd_create": 319, "memfd_secret": 447, "io_uring_setup": 425, "io_uring_enter": 426,
            "io_uring_register": 427, "add_key": 248, "request_key": 249, "keyctl": 250, "bpf": 321,
            "perf_event_open": 298, "userfaultfd": 323, "ptrace": 101, "process_vm_readv": 310,
            "process_vm_writev": 311, "unshare": 272, "setns": 308, "mount": 165, "pivot_root": 155,
            "move_mount": 429, "fsopen": 430, "open_tree": 428, "kexec_load": 246, "shmget": 29,
        },
    ),
    "aarch64": (
        0xC000_00B7,
        {
            "memfd_create": 279, "memfd_secret": 447, "io_uring_setup": 425, "io_uring_enter": 426,
            "io_uring_register": 427, "add_key": 217, "request_key": 218, "keyctl": 219, "bpf": 280,
            "perf_event_open": 241, "userfaultfd": 282, "ptrace": 117, "process_vm_readv": 270,
            "process_vm_writev": 271, "unshare": 97, "setns": 268, "mount": 40, "pivot_root": 41,
            "move_mount": 429, "fsopen": 430, "open_tree": 428, "kexec_load": 104, "shmget": 194,
        },
    ),
}  # fmt: skip
"""By machine: its number in a filter, and the calls that the code may not make: those that hold memory which no process
has, and those with a history of holes. Numbers of Linux's tables of system calls (arch/*/syscalls)."""


def unshare(flags: int) -> None:
    _check(_libc().unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    _check(_libc().mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]), f"mount {target}")


def mount_read_only(path: str) -> None:
    """The mount at `path` and all below it: read-only, without devices and without set-user-id (Linux 5.12)."""
    attributes = struct.pack("=QQQQ", _ATTRIBUTES_READ_ONLY, 0, 0, 0)
    where = ctypes.c_char_p(os.fsencode(path))
    result = _libc().syscall(
        ctypes.c_long(_MOUNT_SETATTR), ctypes.c_long(_AT_FDCWD), where, ctypes.c_ulong(_AT_RECURSIVE), attributes,
        ctypes.c_size_t(len(attributes)),
    )  # fmt: skip
    _check(result, f"mount_setattr {path}")


def change_root(path: str) -> None:
    """`path`, which is a mount, becomes the root; nothing of the old one can be reached."""
    os.chdir(path)
    _check(_libc().pivot_root(b".", b"."), "pivot_root")
    _check(_libc().umount2(b".", _DETACH), "umount")
    os.chdir("/")


def die_with_parent() -> None:
    _prctl(_SET_DEATH_SIGNAL, 9)


def adopt_orphans() -> None:
    _prctl(_SET_CHILD_SUBREAPER, 1)


def be_readable() -> None:
    """Own /proc/self after a change of user."""
    _prctl(_SET_DUMPABLE, 1)


def forgo_rights() -> None:
    """No program that is started from here on has any right of the system, whatever its file says."""
    capability = 0
    while _libc().prctl(_DROP_BOUND, capability, 0, 0, 0) == 0:
        capability += 1
    _prctl(_NO_NEW_RIGHTS, 1)


def refuse_calls() -> None:
    """From here on the calls of REFUSED_CALLS, and all of another machine's numbering, fail with EPERM. Raises OSError
    for a machine whose numbers are not known."""
    machine = os.uname().machine
    if machine not in REFUSED_CALLS:
        raise OSError(0, f"no table of system calls of {machine}")
    program = _filter(*REFUSED_CALLS[machine], foreign=0x4000_0000 if machine == "x86_64" else 0x7FFF_FFFF)
    code = ctypes.create_string_buffer(program)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    whole = Program(len(program) // 8, ctypes.addressof(code))
    _check(_libc().prctl(_SET_SECCOMP, 2, ctypes.byref(whole), 0, 0), "seccomp")


def _filter(machine: int, calls: dict[str, int], foreign: int) -> bytes:
    """A filter in the language of BPF: `machine` and the call's number are words 1 and 0 of what it is given."""
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    allow, refuse = 0x7FFF_0000, 0x0005_0001
    steps = [(load, 0, 0, 4), (equal, 1, 0, machine), (give, 0, 0, refuse), (load, 0, 0, 0)]
    steps += [(at_least, 0, 1, foreign), (give, 0, 0, refuse)]
    for number in sorted(calls.values()):
        steps += [(equal, 0, 1, number), (give, 0, 0, refuse)]
    steps.append((give, 0, 0, allow))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


_loaded: list[Any] = []


def _libc() -> Any:
    if not _loaded:
        _loaded.append(ctypes.CDLL(None, use_errno=True))
    return _loaded[0]


def _prctl(option: int, value: int) -> None:
    _check(_libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
