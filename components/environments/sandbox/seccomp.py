"""A list of system calls -> a filter that refuses them for the rest of a process's life, and of its children's.

Namespaces hide what there is; this keeps code away from the doors that no program needs: other namespaces, mounts,
debugging, keys, memory that no limit counts, and kinds of sockets that a network namespace does not hold back (vsock,
the kernel's own).
"""

import ctypes
import errno
import struct

from components.environments.sandbox import linux

_SAME_EVERYWHERE = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "memfd_secret": 447,
}
_X86_64 = {
    "shmget": 29,
    "shmat": 30,
    "semget": 64,
    "msgget": 68,
    "ptrace": 101,
    "syslog": 103,
    "uselib": 134,
    "personality": 135,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "adjtimex": 159,
    "chroot": 161,
    "acct": 163,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "clock_settime": 227,
    "mbind": 237,
    "set_mempolicy": 238,
    "mq_open": 240,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "unshare": 272,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "clock_adjtime": 305,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "memfd_create": 319,
    "bpf": 321,
    "userfaultfd": 323,
}
_AARCH64 = {
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "chroot": 51,
    "vhangup": 58,
    "quotactl": 60,
    "acct": 89,
    "personality": 92,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "syslog": 116,
    "ptrace": 117,
    "reboot": 142,
    "sethostname": 161,
    "setdomainname": 162,
    "settimeofday": 170,
    "adjtimex": 171,
    "mq_open": 180,
    "msgget": 186,
    "semget": 190,
    "shmget": 194,
    "shmat": 196,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "swapon": 224,
    "swapoff": 225,
    "mbind": 235,
    "set_mempolicy": 237,
    "migrate_pages": 238,
    "move_pages": 239,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "clock_adjtime": 266,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "memfd_create": 279,
    "bpf": 280,
    "userfaultfd": 282,
}
_CLONE3 = 435
_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone knows
_FAMILIES = (1, 2, 10)  # unix, inet, inet6
# Per machine: its number in the audit word, refused calls, and the numbers of clone, socket and socketpair.
_MACHINES = {
    "x86_64": (0xC000003E, _X86_64, 56, (41, 53)),
    "aarch64": (0xC00000B7, _AARCH64, 220, (198, 199)),
}

_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_X32 = 0x40000000


def refused() -> list[str]:
    """The names of the calls that are refused whatever their arguments."""
    return sorted([*_MACHINES[linux.MACHINE][1], *_SAME_EVERYWHERE])


def install() -> None:
    """Filter this process from now on. Raises OSError; KeyError on a machine that is neither x86-64 nor ARM64."""
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    instructions = _program(linux.MACHINE)
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(held))
    pointer = ctypes.create_string_buffer(program, len(program))
    linux.prctl(linux.PR_SET_SECCOMP, 2, ctypes.c_void_p(ctypes.addressof(pointer)))


def _program(machine: str) -> list[tuple[int, int, int, int]]:
    """Instructions of classic BPF: (code, jump if true, jump if false, constant)."""
    audit, numbers, clone, sockets = _MACHINES[machine]
    no, not_there = (_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),  # the calls of another machine, which have other numbers
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        no,
        (_EQUAL, 0, 1, _CLONE3),
        not_there,  # its flags lie in memory, where a filter cannot look; the C library falls back to clone
    ]
    for number in sorted({*numbers.values(), *_SAME_EVERYWHERE.values()}):
        program += [(_EQUAL, 0, 1, number), no]
    program += [(_EQUAL, 0, 4, clone), (_LOAD, 0, 0, _FIRST_ARGUMENT), (_ANY_BIT, 0, 1, _NAMESPACES), no]
    program += [(_RETURN, 0, 0, _ALLOW)]
    for number in sockets:
        checks = [(_EQUAL, len(_FAMILIES) - at, 0, family) for at, family in enumerate(_FAMILIES)]
        block = [(_LOAD, 0, 0, _FIRST_ARGUMENT), *checks, no, (_RETURN, 0, 0, _ALLOW)]
        program += [(_EQUAL, 0, len(block), number), *block]
    return [*program, (_RETURN, 0, 0, _ALLOW)]
