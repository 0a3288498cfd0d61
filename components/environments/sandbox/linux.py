"""The calls of Linux that Python has no words for: namespaces, mounts, capabilities.

Only the template process and what it forks use them (template.py). All raise OSError.
"""

import ctypes
import ctypes.util
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
SIGCHLD = 17

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
_CLEAR_ALL = 4

_CLONE = {"x86_64": 56, "aarch64": 220}
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_VERSION = 0x20080522

# PyDLL keeps the interpreter's lock, so that a child made by clone goes on with it.
_libc = ctypes.PyDLL(None, use_errno=True)
MACHINE = os.uname().machine


def unshare(flags: int) -> None:
    """Leave the namespaces of `flags` for new ones."""
    _checked("unshare", _libc.unshare(ctypes.c_int(flags)))


def clone(flags: int) -> int:
    """As os.fork, in new namespaces. For a process of one thread; Python's own at-fork functions are not run."""
    return _checked("clone", _syscall(_CLONE[MACHINE], flags | SIGCHLD, 0, 0, 0, 0))


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """mount(2)."""
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, data)]
    result = _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    _checked(f"mount {kind or 'bind'} on {target}", result)


def unmount(target: str, flags: int = 0) -> None:
    """umount2(2)."""
    _checked(f"unmount {target}", _libc.umount2(os.fsencode(target), ctypes.c_int(flags)))


def pivot_to(folder: str) -> None:
    """Make a mounted folder the root, and let go of the old one."""
    os.chdir(folder)
    _checked("pivot_root", _syscall(_PIVOT_ROOT[MACHINE], b".", b"."))
    unmount(".", MNT_DETACH)
    os.chdir("/")


def prctl(option: int, *arguments: int | ctypes.c_void_p) -> None:
    """prctl(2)."""
    words = [each if isinstance(each, ctypes.c_void_p) else ctypes.c_ulong(each) for each in arguments]
    words += [ctypes.c_ulong(0)] * (4 - len(words))
    _checked(f"prctl {option}", _libc.prctl(ctypes.c_int(option), *words))


def drop_capabilities() -> None:
    """Give up every capability, now and for every program that is started."""
    for number in range(64):
        if _libc.prctl(ctypes.c_int(PR_CAPBSET_DROP), *[ctypes.c_ulong(word) for word in (number, 0, 0, 0)]) != 0:
            break  # The kernel has no more of them, or this process has none to drop.
    prctl(PR_CAP_AMBIENT, _CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    _checked("capset", _syscall(_CAPSET[MACHINE], ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())))


def _syscall(number: int, *arguments: object) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *words)
    return result


def _checked(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
