"""The walls: what the code can see and do. Two halves: `enter`, of the keeper, before anything of the user's is there,
and `confine`, of the process that becomes the user's program.

Runs inside of the sandbox's own processes, which import the standard library only. Raises OSError.
"""

from __future__ import annotations

import os
import resource
import stat
import sys

from flowrl.backends.sandbox import system
from flowrl.backends.sandbox.limits import Isolation, Limits

NOBODY = 65534
"""User and group of the code."""
_ALL = system.NEW_MOUNTS | system.NEW_NAMES | system.NEW_IPC | system.NEW_PROCESSES | system.NEW_NETWORK
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache")
"""What of the host the code can read, with the folder of its Python."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_OPEN_TO_ALL = 0o1777


def enter() -> bool:
    """Namespaces of one's own; the next fork is the first process of them. Gives whether this is the host's root, which
    must become another user later on."""
    if os.geteuid() == 0:
        try:
            system.unshare(_ALL)
            return True
        except PermissionError:  # root of a container
            pass
    user, group = os.geteuid(), os.getegid()
    system.unshare(_ALL | system.NEW_USERS)
    _map_user(0, user, 0, group)
    return False


def build_root(limits: Limits, prefix: str) -> None:
    """A root of one's own: an empty file system in memory, the system's programs and `prefix` (a Python) to read."""
    system.mount("none", "/", None, system.RECURSIVE | system.PRIVATE)
    shown = [path for path in (*_SYSTEM, prefix, *_DEVICES) if os.path.lexists(path)]
    shown = [path for path in shown if not any(path.startswith(f"{other}/") for other in shown)]
    handles = {path: os.open(path, os.O_PATH) for path in shown if not os.path.islink(path)}
    links = {path: os.readlink(path) for path in shown if os.path.islink(path)}
    root = "/tmp"
    size = f"size={limits.disk_bytes},nr_inodes={limits.files},mode=755"
    system.mount("tmpfs", root, "tmpfs", system.NO_SETUID | system.NO_DEVICES, size)
    for path, handle in handles.items():
        _show(handle, root + path)
    for path, target in links.items():
        os.symlink(target, root + path)
    for folder in ("/tmp", "/dev/shm"):
        os.makedirs(root + folder, exist_ok=True)
        os.chmod(root + folder, _OPEN_TO_ALL)
    os.makedirs(f"{root}/proc")
    system.mount("proc", f"{root}/proc", "proc", system.NO_SETUID | system.NO_DEVICES | system.NO_PROGRAMS, "hidepid=2")
    system.change_root(root)


def _show(handle: int, target: str) -> None:
    """What `handle` is open on, to read at `target`."""
    if stat.S_ISDIR(os.fstat(handle).st_mode):
        os.makedirs(target)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    system.mount(f"/proc/self/fd/{handle}", target, None, system.BIND | system.RECURSIVE)
    os.close(handle)
    if not target.startswith("/tmp/dev/"):
        system.mount_read_only(target)


def confine(limits: Limits, *, as_nobody: bool) -> None:
    """Limits and, behind walls, the loss of all rights: of this process, which must start the program next."""
    if limits.isolation is Isolation.NAMESPACES:
        if as_nobody:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            system.be_readable()
        user, group = os.geteuid(), os.getegid()
        system.unshare(system.NEW_USERS)
        _map_user(NOBODY, user, NOBODY, group)
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
    _limit(limits)
    system.forgo_rights()
    if limits.isolation is Isolation.NAMESPACES:
        system.refuse_calls()


def _map_user(user: int, outer_user: int, group: int, outer_group: int) -> None:
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {outer_user} 1"),
        ("gid_map", f"{group} {outer_group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _limit(limits: Limits) -> None:
    known = {
        resource.RLIMIT_CPU: limits.processor_seconds,
        resource.RLIMIT_AS: 2 * limits.memory_bytes,  # stacks of threads are mapped and hardly used
        resource.RLIMIT_FSIZE: limits.disk_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_CORE: 0,
    }
    if sys.platform == "linux":
        known[resource.RLIMIT_MSGQUEUE] = 0
        known[resource.RLIMIT_MEMLOCK] = 0
    if limits.isolation is Isolation.NAMESPACES:  # elsewhere it counts every process of the user
        known[resource.RLIMIT_NPROC] = 2 * limits.processes
    for name, most in known.items():
        _, hard = resource.getrlimit(name)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(name, (least, least))
