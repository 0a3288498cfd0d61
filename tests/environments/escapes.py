"""Programs that try to get out of the sandbox, or to break it. Each says `ESCAPED` when it believes that it has.

What they did is looked at from outside (tests/environments/outside.py). @NAMES@ are filled in there: @HOST@ a folder of
this machine with the file `secret`, @PARENT@ the process that runs the sandbox, @VICTIM@ another one, @TCP@, @UDP@,
@UNIX@ and @ABSTRACT@ servers that listen outside, @PACKAGES@ and @REPOSITORY@ where Headrace and others are installed.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Escape:
    """A program that tries. `before` runs in an execution of its own first; `at_limit`: a limit must end it."""

    name: str
    code: str
    before: str = ""
    at_limit: bool = False
    peak_megabytes: int = 400


_SYSCALL = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *words):
    number = x86 if platform.machine() == "x86_64" else arm
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(w) if isinstance(w, int) else w for w in words])
def tried(result):
    if result >= 0: print("ESCAPED", result)
"""
_TRY = """
def attempt(function, *arguments):
    try:
        result = function(*arguments)
    except Exception as error:
        print(type(error).__name__)
    else:
        print("ESCAPED", result)
import os, socket, sys
"""

FILES = [
    Escape("read_a_file_of_the_host", _TRY + "attempt(lambda: open('@HOST@/secret').read())"),
    Escape("list_a_folder_of_the_host", _TRY + "attempt(os.listdir, '@HOST@')"),
    Escape("read_the_password_file", _TRY + "attempt(lambda: open('/etc/shadow').read()[:10])"),
    Escape("write_a_file_of_the_host", _TRY + "attempt(lambda: open('@HOST@/written', 'w').write('x'))"),
    Escape("delete_a_file_of_the_host", _TRY + "attempt(os.remove, '@HOST@/deletable')"),
    Escape("symlink_out_and_read", _TRY + "os.symlink('@HOST@/secret', 'link'); attempt(lambda: open('link').read())"),
    Escape(
        "symlink_out_and_write",
        _TRY + "os.symlink('@HOST@', 'folder'); attempt(lambda: open('folder/written', 'w').write('x'))",
    ),
    Escape("hard_link_out", _TRY + "attempt(os.link, '@HOST@/secret', 'hard')"),
    Escape(
        "walk_up_with_dots",
        _TRY + "os.chdir('/'); attempt(lambda: open('../../../../../..' + '@HOST@/secret').read())",
    ),
    Escape(
        "write_into_site_packages",
        _TRY
        + """
import sysconfig
for folder in {sysconfig.get_path('purelib'), sysconfig.get_path('stdlib'), os.path.dirname(os.__file__)}:
    attempt(lambda: open(folder + '/headrace_escape.py', 'w').write('x'))
""",
    ),
    Escape(
        "read_installed_packages",
        _TRY
        + """
import glob
for pattern in ('@PACKAGES@/*', '@REPOSITORY@/*', '/usr/lib/python3*/*-packages/*', '/usr/local/lib/*/*-packages/*'):
    if glob.glob(pattern): print('ESCAPED', pattern)
for folder in sys.path:
    if glob.glob(folder + '/*-packages/*'): print('ESCAPED', folder)
""",
    ),
    Escape("make_a_block_device", _TRY + "attempt(os.mknod, 'disk', 0o060666, os.makedev(254, 0))"),
    Escape(
        "open_devices",
        _TRY + "for name in ('mem', 'kmsg', 'vda', 'sda', 'nvme0n1', 'tty', 'console', 'fuse', 'kvm', 'net/tun'):\n"
        "    attempt(open, '/dev/' + name, 'rb')",
    ),
    Escape(
        "leave_something_in_shared_memory",
        _TRY + "attempt(lambda: open('/dev/shm/headrace_escape', 'w').write('x'))",
    ),
    Escape(
        "find_what_an_earlier_execution_left",
        "import os\nfor folder in ('/tmp', os.getcwd(), '/dev/shm', '/var/tmp', '/folders', '/work'):\n"
        "    for name in os.listdir(folder) if os.path.isdir(folder) and os.access(folder, os.R_OK) else ():\n"
        "        if 'left' in name: print('ESCAPED', folder, name)",
        before="import os\nfor folder in ('/tmp', os.getcwd()):\n"
        "    open(folder + '/left_headrace_escape', 'w').write('x')",
    ),
]

KERNEL = [
    Escape("mount_a_proc", _SYSCALL + "tried(libc.mount(b'proc', b'/tmp', b'proc', 0, None))"),
    Escape("mount_over_the_root", _SYSCALL + "tried(libc.mount(b'tmpfs', b'/usr', b'tmpfs', 0, None))"),
    Escape(
        "make_mounts_writable",
        _SYSCALL + "tried(libc.mount(b'none', b'/usr', None, ctypes.c_ulong(32 | 4096), None))",
    ),
    Escape("unmount_what_hides_others", _SYSCALL + "tried(libc.umount2(b'/folders', 2))"),
    Escape("new_mount_calls", _SYSCALL + "tried(call(430, 430, b'tmpfs', 0)); tried(call(428, 428, -100, b'/', 1))"),
    Escape(
        "nested_user_namespace", _SYSCALL + "tried(libc.unshare(0x10000000)); tried(libc.unshare(0x10000000 | 0x20000))"
    ),
    Escape(
        "nested_user_namespace_by_clone",
        _SYSCALL
        + "import os\nresult = call(56, 220, 0x10000000 | 17, 0, 0, 0, 0)\nif result == 0: os._exit(0)\ntried(result)",
    ),
    Escape(
        "nested_user_namespace_by_clone3",
        _SYSCALL + "import os\nwords = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)\n"
        "result = call(435, 435, ctypes.byref(words), 88)\n"
        "if result == 0: os._exit(0)\ntried(result)",
    ),
    Escape(
        "chroot_and_climb",
        _TRY + "os.mkdir('jail'); attempt(os.chroot, 'jail')",
    ),
    Escape("enter_the_parents_namespaces", _SYSCALL + "import os\ntried(libc.setns(os.open('/proc/1/ns/mnt', 0), 0))"),
    Escape(
        "open_by_file_handle",
        _SYSCALL + "handle = (ctypes.c_uint32 * 40)(128); mount = ctypes.c_int()\n"
        "tried(call(303, 264, -100, b'/usr', ctypes.byref(handle), ctypes.byref(mount), 0))",
    ),
    Escape("debug_the_first_process", _SYSCALL + "tried(libc.ptrace(16, 1, 0, 0))"),
    Escape("debug_the_parent", _SYSCALL + "tried(libc.ptrace(16, @PARENT@, 0, 0)); tried(libc.ptrace(0, 0, 0, 0))"),
    Escape(
        "read_the_parents_memory_by_call",
        _SYSCALL + "buffer = ctypes.create_string_buffer(64)\n"
        "local = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 64); remote = (ctypes.c_size_t * 2)(0x400000, 64)\n"
        "for pid in (1, @PARENT@): tried(call(310, 270, pid, local, 1, remote, 1, 0))",
    ),
    Escape("take_the_parents_files", _SYSCALL + "import os\ntried(call(438, 438, os.pidfd_open(1), 0, 0))"),
    Escape(
        "become_root", _TRY + "attempt(os.setuid, 4711); attempt(os.setgroups, [0]); attempt(os.setresuid, 0, 0, 4711)"
    ),
    Escape(
        "become_root_through_setuid_programs",
        "import os, subprocess\nfor path in ('/bin/su', '/usr/bin/sudo', '/bin/mount', '/usr/bin/newuidmap'):\n"
        "    if os.path.exists(path):\n"
        "        done = subprocess.run([path, '--version'], capture_output=True)\n"
        "done = subprocess.run(['sh', '-c', 'cat @HOST@/secret && echo ESCAPED'], capture_output=True, text=True)\n"
        ""
        "print(done.stdout)",
    ),
    Escape(
        "kernel_keys",
        _SYSCALL + "tried(call(250, 219, 0, -3, 1)); tried(call(248, 217, b'user', b'headrace', b'x', 1, -4))",
    ),
    Escape(
        "kernel_doors",
        _SYSCALL + "buffer = (ctypes.c_uint64 * 32)()\n"
        "tried(call(321, 280, 0, ctypes.byref(buffer), 72))\n"
        "tried(call(298, 241, ctypes.byref(buffer), 0, -1, -1, 0))\n"
        ""
        "tried(call(323, 282, 0)); tried(call(425, 425, 8, ctypes.byref(buffer))); tried(call(300, 262, 0, 0))",
    ),
    Escape(
        "change_the_clock_and_the_name",
        _SYSCALL + "tried(libc.sethostname(b'x', 1)); tried(libc.settimeofday(None, None))",
    ),
    Escape(
        "system_v_memory",
        _SYSCALL + "tried(call(29, 194, 4711, 4096, 0o1666))",
        before=_SYSCALL + "call(29, 194, 4711, 4096, 0o1666)",
    ),
    Escape(
        "lower_the_priority_of_dying", _TRY + "attempt(lambda: open('/proc/self/oom_score_adj', 'w').write('-1000'))"
    ),
    Escape(
        "raise_limits",
        _TRY + "import resource\nfor kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE):\n"
        "    attempt(resource.setrlimit, kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "attempt(os.nice, -10); attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))",
    ),
]

SECRETS = [
    Escape("environment", "import os\nprint(dict(os.environ), os.popen('env').read())"),
    Escape(
        "environment_of_other_processes",
        "import glob\nfor path in glob.glob('/proc/[0-9]*/environ') + ['/proc/1/environ', '/proc/@PARENT@/environ']:\n"
        "    try: print(open(path, 'rb').read())\n    except OSError: pass",
    ),
    Escape("command_lines", _TRY + "attempt(lambda: open('/proc/@PARENT@/cmdline').read())"),
    Escape(
        "memory_of_the_parent", _TRY + "attempt(open, '/proc/@PARENT@/mem', 'r+b'); attempt(open, '/proc/1/mem', 'r+b')"
    ),
    Escape(
        "folders_of_other_processes",
        _TRY + "for pid in (1, @PARENT@):\n"
        "    attempt(os.listdir, f'/proc/{pid}/root'); attempt(os.listdir, f'/proc/{pid}/cwd')",
    ),
    Escape(
        "inherited_files",
        "import os\nfor number in range(3, 1024):\n    try: found = os.fstat(number)\n    except OSError: continue\n"
        "    try: print(number, os.pread(number, 1000, 0))\n    except OSError: print(number)",
    ),
    Escape(
        "memory_of_the_one_before",
        "import gc\nfor found in gc.get_objects():\n"
        "    if isinstance(found, dict) and any('HIDDEN' + '_WORD' in str(key) for key in list(found)):\n"
        ""
        "        print('ESCAPED')",
        before="HIDDEN_WORD = 1",
    ),
    Escape(
        "inject_into_a_terminal",
        "import fcntl\nfor fd in (0, 1, 2):\n    try: fcntl.ioctl(fd, 0x5412, b'x')\n"
        "    except OSError: pass\n    else: print('ESCAPED')",
    ),
]

NETWORK = [
    Escape("tcp_to_the_host", _TRY + "attempt(socket.create_connection, ('127.0.0.1', @TCP@), 0.3)"),
    Escape("tcp_over_ipv6", _TRY + "attempt(socket.create_connection, ('::1', @TCP@), 0.3)"),
    Escape(
        "udp_to_the_host",
        _TRY + "attempt(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto, b'x', ('127.0.0.1', @UDP@))",
    ),
    Escape("unix_socket_of_the_host", _TRY + "attempt(socket.socket(socket.AF_UNIX).connect, '@UNIX@')"),
    Escape("abstract_socket_of_the_host", _TRY + "attempt(socket.socket(socket.AF_UNIX).connect, '\\0@ABSTRACT@')"),
    Escape("metadata_server", _TRY + "attempt(socket.create_connection, ('169.254.169.254', 80), 0.3)"),
    Escape("names", _TRY + "attempt(socket.getaddrinfo, 'metadata.google.internal', 80)"),
    Escape(
        "raw_packets",
        _TRY + "attempt(socket.socket, 17, socket.SOCK_RAW); attempt(socket.socket, 2, socket.SOCK_RAW, 1)",
    ),
    Escape("the_machine_below", _TRY + "attempt(socket.socket, 40, socket.SOCK_STREAM); attempt(socket.socket, 38, 5)"),
    Escape(
        "bring_up_an_interface",
        _TRY
        + "import fcntl, struct\nattempt(fcntl.ioctl, socket.socket(), 0x8914, struct.pack('16sH14s', b'lo', 1, b''))\n"
        "attempt(socket.socket, 16, socket.SOCK_RAW, 0)",
    ),
]

PROCESSES = [
    Escape("fork_bomb", "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", at_limit=True),
    Escape(
        "fork_bomb_that_hides",
        "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass",
        at_limit=True,
    ),
    Escape(
        "thread_bomb",
        "import threading, time\ntry:\n"
        "    while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "except RuntimeError: print(threading.active_count() > 40 and 'ESCAPED')",
    ),
    Escape(
        "kill_the_parent",
        _TRY + "import signal\nattempt(os.kill, @PARENT@, signal.SIGUSR1); attempt(os.kill, @VICTIM@, 9)",
    ),
    Escape("kill_by_number_of_the_parent", "import os\nos.kill(os.getppid(), 9)\nos.kill(1, 9)"),
    Escape("kill_everything", "import os\nos.kill(-1, 9)"),
    Escape(
        "stop_everything",
        "import os, signal\nif os.fork() == 0:\n    os.kill(-1, signal.SIGSTOP)\nos.wait()",
        at_limit=True,
    ),
    Escape("stop_itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", at_limit=True),
    Escape(
        "ignore_signals",
        "import signal\nfor number in range(1, 65):\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True: pass",
        at_limit=True,
    ),
    Escape(
        "daemon_that_writes_later",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(0.3)\n"
        "        open('@HOST@/written', 'w').write('later')\n        print('ESCAPED')\n    os._exit(0)",
    ),
    Escape(
        "children_that_sleep_past_the_end",
        "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n"
        "        time.sleep(600)\nprint('done')",
    ),
    Escape(
        "time_dodged_by_children",
        "import os, time\nwhile True:\n    if os.fork(): os._exit(0)\n    os.setsid(); time.sleep(0.01)",
    ),
    Escape("sleep_for_ever", "import time\ntime.sleep(10**6)", at_limit=True),
    Escape("loop_in_python", "while True: pass", at_limit=True),
    Escape("loop_in_c", "sum(range(10**12))", at_limit=True),
    Escape("loop_in_a_pattern", "import re\nre.match(r'(a+)+$', 'a' * 60 + 'b')", at_limit=True),
    Escape("loop_in_a_library", "import ctypes\nctypes.CDLL(None).pause()", at_limit=True),
    Escape("big_power", "9**9**9", at_limit=True),
]

AMOUNTS = [
    Escape("much_output", "while True: print('x' * 100_000)", at_limit=True),
    Escape("endless_line", "import sys\nwhile True: sys.stdout.write('x' * 100)", at_limit=True),
    Escape("much_on_stderr", "import os\nwhile True: os.write(2, b'x' * 65536)", at_limit=True),
    Escape(
        "output_by_children", "import os\nos.fork(); os.fork()\nwhile True: os.write(1, b'x' * 4096)", at_limit=True
    ),
    Escape("endless_value", "class X:\n    def __repr__(self): return 'x' * 10**8\nX()"),
    Escape("much_memory", "block = bytearray(10**10)"),
    Escape("memory_bit_by_bit", "blocks = []\nwhile True: blocks.append(bytearray(10**6))"),
    Escape(
        "memory_by_mapping",
        "import mmap\nblocks = []\nwhile True:\n"
        "    block = mmap.mmap(-1, 10**7); block.write(b'x' * 10**7); blocks.append(block)",
    ),
    Escape("memory_without_a_name", _TRY + "attempt(os.memfd_create, 'x')"),
    Escape("memory_in_files", "for number in range(10**6): open(f'{number}', 'wb').write(b'x' * 10**6)"),
    Escape("one_big_file", "file = open('big', 'wb')\nwhile True: file.write(b'x' * 10**6)"),
    Escape("sparse_file", _TRY + "attempt(os.truncate, os.open('sparse', os.O_CREAT | os.O_RDWR), 10**12)"),
    Escape("many_files", "for number in range(10**6): open(f'{number}', 'w').close()"),
    Escape("deep_folders", "import os\nfor _ in range(10**6): os.mkdir('d'); os.chdir('d')"),
    Escape("many_open_files", "files = [open('/dev/null') for _ in range(10**5)]"),
    Escape(
        "zip_bomb",
        "import io, zipfile\nheld = io.BytesIO()\n"
        "with zipfile.ZipFile(held, 'w', zipfile.ZIP_DEFLATED) as file: file.writestr('x', b'0' * 10**8)\n"
        ""
        "with zipfile.ZipFile(held) as file: parts = [file.read('x') for _ in range(100)]",
    ),
    Escape("pickle_bomb", "import pickle\npickle.loads(b'cos\\nsystem\\n(Vecho hello > @HOST@/written\\ntR.')"),
    Escape("nested_data", "import json\njson.loads('[' * 10**6)"),
    Escape("lock_memory", _SYSCALL + "held = ctypes.create_string_buffer(10**6)\ntried(libc.mlock(held, 10**6))"),
]

BREAKING = [
    Escape(
        "close_the_streams",
        "import os\nfor number in range(0, 64):\n    try: os.close(number)\n    except OSError: pass",
    ),
    Escape("close_stdout", "import sys\nsys.stdout.close(); sys.stderr.close()\nprint('x')"),
    Escape("replace_stdout", "import sys\nsys.stdout = sys.stderr = sys.stdin = None\n1/0"),
    Escape(
        "write_to_every_pipe",
        "import os\nfor number in range(0, 64):\n"
        '    try: os.write(number, b\'{"value": "ESC"}\\n{[\')\n    except OSError: pass',
    ),
    Escape(
        "fake_a_broken_sandbox",
        'import os\nfor number in range(3, 64):\n    try: os.write(number, b\'{"broken": "x"}\')\n'
        "    except OSError: pass\nos._exit(121)",
    ),
    Escape("leave_by_sys_exit", "import sys\nsys.exit('ESC' 'APE')"),
    Escape("leave_by_os_exit", "import os\nos._exit(0)"),
    Escape("kill_itself", "import os\nos.kill(os.getpid(), 9)"),
    Escape("crash", "import ctypes\nctypes.string_at(0)"),
    Escape("abort", "import os\nos.abort()"),
    Escape("deep_recursion", "def f(): return f()\nf()"),
    Escape(
        "deep_recursion_in_c",
        "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
    ),
    Escape(
        "hostile_text",
        "class X(Exception):\n    def __str__(self): raise SystemExit(0)\n    __repr__ = __str__\nraise X()",
    ),
    Escape("hostile_value", "class X:\n    def __repr__(self): raise KeyboardInterrupt\nX()"),
    Escape(
        "hostile_class",
        "class M(type):\n    __name__ = property(lambda self: 1 / 0)\nclass X(Exception, metaclass=M): pass\nraise X()",
    ),
    Escape("hostile_exit", "class X:\n    def __str__(self): return 'x' * 10**7\nraise SystemExit(X())"),
    Escape("bytes_that_are_no_text", "import os\nos.write(1, bytes(range(256)) * 10)\nprint('\\ud800')"),
    Escape(
        "hooks_left_behind",
        "import json\nprint(len([1, 2]), json.dumps([1]))\nif len([1, 2]) != 2: print('ESCAPED')",
        before="import builtins, sys, json\nbuiltins.len = lambda x: 0\njson.dumps = lambda x: 'poison'\n"
        "sys.meta_path.insert(0, None)\nsys.path.insert(0, '/')",
    ),
    Escape(
        "modules_left_behind",
        "import this_is_poison",
        before="for name in ('sitecustomize', 'usercustomize', 'json', 'this_is_poison'):\n"
        "    open(name + '.py', 'w').write('print(\"ESCAPED\")')\n"
        "open('x.pth', 'w').write('import this_is_poison')",
    ),
    Escape(
        "hooks_at_the_end",
        "import atexit, os, signal, threading\natexit.register(lambda: print('x'))\n"
        "threading.Thread(target=lambda: os._exit(7)).start()",
    ),
]

ALL = [*FILES, *KERNEL, *SECRETS, *NETWORK, *PROCESSES, *AMOUNTS, *BREAKING]

NOT_STOPPED_BY_PROCESS = {
    "files of the machine": [each.name for each in FILES],
    "the kernel's doors": [each.name for each in KERNEL],
    "secrets of other processes": [
        *("environment_of_other_processes", "command_lines", "memory_of_the_parent", "folders_of_other_processes"),
    ],
    "the network": [each.name for each in NETWORK],
    "numbers of processes, where all are root's": ["fork_bomb", "fork_bomb_that_hides", "thread_bomb"],
    "signals": ["kill_the_parent", "kill_by_number_of_the_parent", "kill_everything", "stop_everything"],
    "memory and disk as a whole": ["memory_without_a_name", "memory_in_files", "many_files", "lock_memory"],
    "other programs": ["pickle_bomb"],
}
"""What `isolation: process` makes no claim about. These are not even tried there: some would end all work here."""
