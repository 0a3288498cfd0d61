"""A process of Headrace's own -> the same one in a world of its own, and a fresh room in it for every execution.

The world, made once by the template process: a user namespace in which it is root, no network, and a root file system
that holds Python, the system's programs and libraries (read-only), and five devices. No /proc, no /etc to speak of, no
installed package, no file of anybody.

A room, made for every execution by its first process: process numbers of its own, and empty folders /work and /tmp in
memory, limited in bytes and in number of files. When the first process of a room ends, the kernel ends all others.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

from components.environments.sandbox import linux

FOLDERS = "/folders"
"""Where the folders of episodes are mounted. In a room something empty lies over it."""
WORK = "/work"
STRANGER = 65534
"""Who runs the code where Headrace runs as root: the user and group `nobody`, who owns nothing."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_ACCOUNTS = "root:x:0:0::/work:/bin/false\nmodel:x:1:1::/work:/bin/false\n"
_READ_ONLY = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
_SPACES = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS


def enter_world(hidden: Sequence[str]) -> int:
    """Make the world and go in. Gives the user in it who runs code. Raises OSError where the system does not allow it.

    `hidden` are folders of which nothing is shown: installed packages, in which answers may lie.

    That is 1, a stranger outside, where this is root, and 0, this process's own user without any of root's rights,
    where it is not.
    """
    user = _enter_user_namespace()
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    # Opened first, as the new root is put together on top of a folder that may hold some of them.
    sources = {path: os.open(path, os.O_PATH) for path in _sources()}
    linux.mount("tmpfs", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,nr_inodes=4096,mode=755")
    for path, opened in sources.items():
        _show(path, opened, f"/tmp{path}")
    for folder in (WORK, "/tmp", FOLDERS):
        os.mkdir(f"/tmp{folder}")
    os.makedirs("/tmp/etc", exist_ok=True)
    _write("/tmp/etc/passwd", _ACCOUNTS)
    _write("/tmp/etc/group", "root:x:0:\nmodel:x:1:\n")
    _close_for_writing("/tmp")
    for path in hidden:
        # A folder that holds Python itself cannot be hidden; what lies in it and must be is named, too.
        if os.path.isdir(f"/tmp{path}") and not os.__file__.startswith(f"{path}/"):
            linux.mount("tmpfs", f"/tmp{path}", "tmpfs", _READ_ONLY, "size=4k,mode=555")
    linux.pivot_to("/tmp")
    linux.mount("tmpfs", FOLDERS, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=64k,mode=700")
    return user


def make_folder(name: str, megabytes: int, files: int, user: int) -> None:
    """An episode's folder, kept from one of its executions to the next."""
    os.mkdir(f"{FOLDERS}/{name}")
    _mount_memory(f"{FOLDERS}/{name}", megabytes, files, user)


def remove_folder(name: str) -> None:
    """Let go of an episode's folder and all that is in it."""
    linux.unmount(f"{FOLDERS}/{name}", linux.MNT_DETACH)
    os.rmdir(f"{FOLDERS}/{name}")


def enter_room() -> int:
    """As os.fork, in new process numbers, mounts and queues."""
    return linux.clone(linux.CLONE_NEWPID | linux.CLONE_NEWNS | linux.CLONE_NEWIPC)


def furnish_room(folder: str | None, megabytes: int, files: int, user: int) -> None:
    """Lay out a room: /work (an episode's folder, or an empty one) and /tmp; the folders of others are hidden."""
    if folder is None:
        _mount_memory(WORK, megabytes, files, user)
    else:
        linux.mount(f"{FOLDERS}/{folder}", WORK, None, linux.MS_BIND)
    _mount_memory("/tmp", megabytes, files, user)
    linux.mount("tmpfs", FOLDERS, "tmpfs", _READ_ONLY, "size=4k,mode=000")


def _enter_user_namespace() -> int:
    user, group = os.geteuid(), os.getegid()
    if user != 0:
        linux.unshare(linux.CLONE_NEWUSER | _SPACES)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"0 {user} 1")
        _write("/proc/self/gid_map", f"0 {group} 1")
        return 0
    # Only a process that is still outside may say who a second user in there is.
    mine, theirs = os.pipe()
    process, helper = os.getpid(), os.fork()
    if helper == 0:
        os.close(theirs)
        with contextlib.suppress(OSError):
            os.read(mine, 1)
            for kind in ("uid_map", "gid_map"):
                _write(f"/proc/{process}/{kind}", f"0 0 1\n1 {STRANGER} 1")
            os._exit(0)
        os._exit(1)
    linux.unshare(linux.CLONE_NEWUSER | _SPACES)
    os.close(mine)
    os.close(theirs)
    if os.waitpid(helper, 0)[1] != 0:
        raise OSError("uid_map: this root may not say who is who in a user namespace (CAP_SETUID is missing)")
    os.setgroups([])
    return 1


def _sources() -> Iterator[str]:
    """What of this system is shown: files and folders by their own names."""
    shown = [path for path in _SYSTEM if os.path.lexists(path)]
    prefix = os.path.realpath(sys.base_prefix)
    if not any(prefix == path or prefix.startswith(f"{path}/") for path in shown):
        shown.append(prefix)
    return (path for path in (*shown, *_DEVICES) if os.path.exists(path))


def _show(path: str, opened: int, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
    else:
        if os.path.isdir(path):
            os.mkdir(target)
        else:
            _write(target, "")
        linux.mount(f"/proc/self/fd/{opened}", target, None, linux.MS_BIND | linux.MS_REC)
    os.close(opened)


def _close_for_writing(root: str) -> None:
    """Make every mount below `root` read-only. What the system had already forbidden for one stays forbidden."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        targets = [line.split()[4].encode().decode("unicode_escape") for line in file]
    for target in targets:
        if target == root or target.startswith(f"{root}/"):
            flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | linux.MS_NOSUID | _kept(target)
            # Devices stay devices; nothing else may bring its own.
            flags |= 0 if target.startswith(f"{root}/dev/") else linux.MS_NODEV
            linux.mount("none", target, None, flags)


def _kept(target: str) -> int:
    held = os.statvfs(target).f_flag
    relatime = (1 << 21) if held & 4096 else 0
    return (held & (linux.MS_NODEV | 8 | 1024 | 2048)) | relatime


def _mount_memory(target: str, megabytes: int, files: int, user: int) -> None:
    data = f"size={megabytes}m,nr_inodes={files},mode=700,uid={user},gid={user}"
    linux.mount("tmpfs", target, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, data)


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
