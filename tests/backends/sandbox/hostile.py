"""Code that tries to do what it must not, by name; and what it comes to."""

from __future__ import annotations

from flowrl.backends.sandbox.limits import Ended

COMES_TO: dict[str, tuple[str, Ended]] = {
    "fork bomb": (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        Ended.PROCESSES,
    ),
    "thread bomb": (
        "import threading, time\nthreading.stack_size(1 << 16)\nwhile True:\n    try:\n"
        "        threading.Thread(target=time.sleep, args=(60,)).start()\n    except RuntimeError:\n        pass",
        Ended.PROCESSES,
    ),
    "memory hog": ("held = []\nwhile True:\n    held.append(bytearray(1 << 20))", Ended.MEMORY),
    "memory of many": (
        "import os, time\nfor _ in range(8):\n    if not os.fork():\n        held = bytearray(b'x' * (24 << 20))\n"
        "        time.sleep(60)\ntime.sleep(60)",
        Ended.MEMORY,
    ),
    "shared memory": (
        "import mmap, time\nheld = []\nfor _ in range(200):\n    held.append(mmap.mmap(-1, 1 << 20))\n"
        "    held[-1].write(b'x' * (1 << 20))\ntime.sleep(60)",
        Ended.MEMORY,
    ),
    "endless loop": ("while True:\n    pass", Ended.TIME),
    "loop in C, deaf to signals": (
        "import signal\nfor number in range(1, 65):\n    try:\n        signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nsum(iter(int, 1))",
        Ended.TIME,
    ),
    "time of children": (
        "import os, time\nfor _ in range(4):\n    if not os.fork():\n        while True:\n            pass\n"
        "time.sleep(60)",
        Ended.TIME,
    ),
    "sleep": ("import time\ntime.sleep(3600)", Ended.TIME),
    "100 MB of output": ("for _ in range(100):\n    print('x' * (1 << 20))", Ended.OUTPUT),
    "output of a child": (
        "import os, time\nif not os.fork():\n    while True:\n        os.write(2, b'x' * 4096)\ntime.sleep(60)",
        Ended.OUTPUT,
    ),
    "full disk": (
        "for number in range(1000):\n    open(f'/tmp/{number}', 'wb').write(b'x' * (1 << 20))",
        Ended.FILES,
    ),
    "many files": ("for number in range(10**6):\n    open(f'/tmp/{number}', 'wb').close()", Ended.FILES),
}
"""Each ends in the limit beside it."""

OUTSIDE: dict[str, str] = {
    "write beside its Python": "import sys\nopen(sys.base_prefix + '/x', 'w')",
    "write to /usr": "open('/usr/x', 'w')",
    "read the flow": "open({flow!r})",
    "read by a link": "import os\nos.symlink({flow!r}, '/tmp/link')\nopen('/tmp/link')",
    "read by the root of another process": "open('/proc/1/root' + {flow!r})",
    "read passwords": "open('/etc/shadow')",
    "the first process's memory": "open('/proc/1/mem', 'rb+')",
    "the first process's files": "import os\nos.listdir('/proc/1/fd')",
    "the first process's words": "print(open('/proc/1/environ').read())",
    "trace": "import ctypes\nif ctypes.CDLL(None).ptrace(0, 0, 0, 0) < 0:\n    raise OSError",
    "tcp": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)",
    "udp": "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9))",
    "names": "import socket\nsocket.getaddrinfo('localhost.example', 80)",
    "mount": "import ctypes\nif ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) < 0:\n    raise OSError",
    "new namespace": "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) < 0:\n    raise OSError",
    "another user": "import os\nos.setuid(0)",
    "memory of nobody": "import os\nos.memfd_create('x')",
    "segments": "import ctypes\nif ctypes.CDLL(None).shmget(0, 1 << 30, 0o1600) < 0:\n    raise OSError",
    "device": "import os\nos.mknod('/tmp/disk', 0o60600, os.makedev(259, 0))",
    "settings of the kernel": "open('/proc/sys/kernel/core_pattern', 'w').write('x')",
    "files beyond its share": "held = [open('/dev/null') for _ in range(1000)]",
}
"""Each fails by an OSError, which it must not catch to pass: `{flow}` is a file of the flow, `{port}` a server's."""
