"""One process decides, every process computes: the same device programs in the same order on all hosts.

A mesh that spans several hosts is computed on only when each of their processes starts the same programs. Here the
first process, the leader, runs the whole of Headrace; the others follow: they are sent the name of each program and
what it is called with, and call it, too. Arrays never travel: each result has a number on every host, and the next call
names it by that. Where there is one process, a program is the function that it was made of.

    decode = program(jax.jit(...))                  # in a module: known by its name everywhere
    make_accumulate = program(make_accumulate)      # what a program makes may be programs

    with lead(): ...                                # in the first process
    follow()                                        # in each of the others, until the leader ends
"""

import functools
import importlib
import io
import os
import pickle
import secrets
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

Function = TypeVar("Function", bound=Callable[..., Any])

_ADDRESS_BYTES = 256
_programs: dict[str, Callable[..., Any]] = {}
_leader: "_Leader | None" = None


class Program:
    """A function that every host calls when the leader does; see `program`."""

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the function gives."""
        return self.function(*arguments, **named) if _leader is None else _leader.run(self, arguments, named)


def program(function: Function) -> Function:
    """Register a function of a module, by its name there, as one that all hosts call together.

    It must do the same on each of them: its arguments are arrays, anything that pickles, and results of other programs.
    """
    named = getattr(function, "__wrapped__", function)
    name = f"{named.__module__}:{named.__qualname__}"
    _programs[name] = function
    return cast(Function, Program(function, name))


def made(function: Function) -> Function:
    """A program that another program makes: it has no name of its own, and is known by the call that made it."""
    return cast(Function, Program(function))


def on_host(tree: Any) -> Any:
    """The tree with its arrays whole in this process's memory, as numpy arrays where other hosts hold parts of them."""
    spread = any(isinstance(leaf, jax.Array) and not leaf.is_fully_addressable for leaf in jax.tree.leaves(tree))
    return jax.tree.map(np.asarray, _gather(tree)) if spread else tree


def _gather_whole(tree: Any) -> Any:
    def whole(leaf: Any) -> Any:
        return jax.sharding.NamedSharding(leaf.sharding.mesh, jax.sharding.PartitionSpec())

    return jax.jit(lambda arrays: arrays, out_shardings=jax.tree.map(whole, tree))(tree)


_gather = program(_gather_whole)


@contextmanager
def lead() -> Iterator[None]:
    """Make this process the leader of all that `jax.distributed` has joined, and end the others on leaving."""
    global _leader
    leader = _Leader()
    _leader = leader
    try:
        yield
    finally:
        _leader = None
        leader.close()


def follow() -> None:
    """Do what the leader does until it ends. Raises ConnectionError when it is gone without a word."""
    held: dict[int, Any] = {}
    numbers = iter(range(1 << 62))
    with _connect(_meet(None)) as connection:
        while (message := _next(connection)) is not None:
            call = cast(_Call, _Reader(io.BytesIO(message), held).load())
            for number in call.forgotten:
                held.pop(number, None)
            function = _named(call.program) if isinstance(call.program, str) else call.program.function
            for leaf in jax.tree.leaves(function(*call.arguments, **call.named)):
                held[next(numbers)] = leaf


def _named(name: str) -> Callable[..., Any]:
    importlib.import_module(name.partition(":")[0])
    return _programs[name]


class _Call(NamedTuple):
    """`forgotten` are the numbers of results that the leader has no use for any more."""

    program: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    forgotten: list[int]


class _Leader:
    """Tells every follower what to call, and calls it. Calls of several threads come in one order for all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy_thread: int | None = None
        self._numbers = iter(range(1 << 62))
        self._known: dict[int, tuple[int, Any]] = {}
        self._gone: deque[int] = deque()
        self._followers = self._gather_followers()

    def run(self, called: Program, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self._busy_thread == threading.get_ident():
            # A program inside a program: the followers are in the same one.
            return called.function(*arguments, **named)
        with self._lock:
            self._busy_thread = threading.get_ident()
            try:
                return self._run(called, arguments, named)
            finally:
                self._busy_thread = None

    def _run(self, called: Program, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if called.name is None and id(called) not in self._known:
            raise ValueError(f"{called.function} was made outside of a program, so the other hosts do not know it")
        arguments, named = jax.tree.map(self._as_sent, (arguments, named))
        forgotten = [self._gone.popleft() for _ in range(len(self._gone))]
        message = io.BytesIO()
        _Writer(message, self._known).dump(_Call(called.name or called, arguments, named, forgotten))
        for follower in self._followers:
            follower.send_bytes(message.getbuffer())
        result = called.function(*arguments, **named)
        for leaf in jax.tree.leaves(result):
            self._remember(next(self._numbers), leaf)
        return result

    def close(self) -> None:
        for follower in self._followers:
            follower.send_bytes(b"")
            follower.close()

    def _as_sent(self, leaf: Any) -> Any:
        """An array that only this process knows is called with as the followers get it."""
        return np.asarray(leaf) if isinstance(leaf, jax.Array) and id(leaf) not in self._known else leaf

    def _remember(self, number: int, leaf: Any) -> None:
        if not isinstance(leaf, jax.Array) and not callable(leaf):
            self._gone.append(number)
            return
        key = id(leaf)

        def forget(_: Any) -> None:
            # Runs wherever the array is dropped, in any thread: appending and popping are atomic.
            self._gone.append(number)
            if self._known.get(key, (None, None))[0] == number:
                self._known.pop(key, None)

        self._known[key] = (number, weakref.ref(leaf, forget))

    def _gather_followers(self) -> list[Connection]:
        key = secrets.token_bytes(32)
        host = socket.gethostbyname(socket.gethostname())
        with Listener((host, 0), authkey=key, backlog=jax.process_count()) as listener:
            port = cast(tuple[str, int], listener.address)[1]
            _meet((host, port, key))
            return [listener.accept() for _ in range(jax.process_count() - 1)]


class _Writer(pickle.Pickler):
    """Writes numbers for what the followers hold, and ids for devices."""

    def __init__(self, file: io.BytesIO, known: dict[int, tuple[int, Any]]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._known = known

    def persistent_id(self, value: Any) -> tuple[str, int] | None:
        if isinstance(value, jax.Device):
            return "device", value.id
        number, reference = self._known.get(id(value), (0, None))
        return ("held", number) if reference is not None and reference() is value else None


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, held: dict[int, Any]) -> None:
        super().__init__(file)
        self._held = held

    def persistent_load(self, identity: tuple[str, int]) -> Any:
        kind, number = identity
        if kind == "held":
            return self._held[number]
        return next(device for device in jax.devices() if device.id == number)


def _meet(address: tuple[str, int, bytes] | None) -> tuple[str, int, bytes]:
    """The leader's address and key, told to all through the devices that they have in common."""
    text = pickle.dumps(address) if address else b""
    told = np.zeros(_ADDRESS_BYTES, np.uint8)
    told[: len(text)] = np.frombuffer(text, np.uint8)
    return pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(told, is_source=address is not None)).tobytes())


def _connect(address: tuple[str, int, bytes]) -> Connection:
    host, port, key = address
    return Client((host, port), authkey=key)


def _next(connection: Connection) -> bytes | None:
    try:
        return connection.recv_bytes() or None
    except EOFError:
        raise ConnectionError(f"the leader of process {os.getpid()} is gone; this host ends with it") from None
