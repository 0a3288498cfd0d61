"""Two processes that do not trust each other -> calls from one to the other, in plain values.

What travels is numbers, texts, bytes and the containers of the standard library, as exact copies. Everything else (a
function, an object of a class of one's own) stays where it is, and the other side gets something that stands for it.
Nothing that is received is ever run, and no class of the other side's is ever made.
"""

import builtins
import contextlib
import json
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_MESSAGE = 4_000_000
"""Bytes."""
_SMALL = 2**53
_CONTAINERS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
_TEXTS: dict[str, Callable[[str], Any]] = {
    "int": lambda text: int(text, 16),
    "bytes": lambda text: text.encode("latin-1"),
    "bytearray": lambda text: bytearray(text.encode("latin-1")),
    "complex": complex,
    "Decimal": Decimal,
    "Fraction": Fraction,
}


class GoneError(Exception):
    """The other side ended, or said what cannot be read."""


class Peer:
    """One end of a link. `held` are the objects of this side that the other one may name, by their number.

    A `guarded` side lets its objects be called and walked through, and shows public attributes of objects whose class
    was defined by what runs there; not of functions, generators or frames, which lead to everything.
    """

    def __init__(self, link: int, *, guarded: bool) -> None:
        self.guarded = guarded
        self._socket = socket.socket(fileno=link)
        self._lines = self._socket.makefile("rb")
        self.held: list[Any] = []
        self.failures = 0

    def ask(self, do: str, **more: Any) -> Any:
        """Ask the other side, and answer what it asks in the meantime. Raises what it says was raised over there."""
        arguments = [*more.get("args", ()), *more.get("named", {}).values()]
        if "args" in more:
            more["args"] = [self.pack(each) for each in more["args"]]
            more["named"] = {name: self.pack(each) for name, each in more["named"].items()}
        self._send({"do": do, **more})
        while True:
            message = self._receive()
            if "do" in message:
                self._send(self._answer(message))
            elif "raised" in message:
                self.failures += 1
                raise _exception(message["raised"], may_stop=more.get("name") == "__next__")
            else:
                value = self.unpack(message.get("value"))
                if value is None:
                    self._copy_back(arguments, message)
                return value

    def serve(self) -> None:
        """Answer until the other side is gone."""
        with contextlib.suppress(GoneError):
            while True:
                self._send(self._answer(self._receive()))

    def pack(self, value: Any) -> Any:
        """A value as JSON: itself, a tagged list, or the number of a held object."""
        if value is None or value is True or value is False:
            return value
        if isinstance(value, Remote):
            return {"yours": object.__getattribute__(value, "_number")}
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            plain = int.__int__(value)
            return plain if abs(plain) < _SMALL else {"int": hex(plain)}
        return self._pack_more(value)

    def unpack(self, value: Any) -> Any:
        """The opposite of `pack`. Raises GoneError for what `pack` never says."""
        try:
            return self._unpack(value)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
            raise GoneError(f"it answered what is no value ({type(error).__name__})") from None

    def _pack_more(self, value: Any) -> Any:
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, list):
            return [self.pack(each) for each in list(value)]
        if isinstance(value, dict):
            return {"dict": [[self.pack(key), self.pack(each)] for key, each in dict(value).items()]}
        for name, kind in (("tuple", tuple), ("set", set), ("frozenset", frozenset), ("deque", deque)):
            if isinstance(value, kind):
                return {name: [self.pack(each) for each in kind(value)]}
        if isinstance(value, bytes | bytearray):
            return {"bytes" if isinstance(value, bytes) else "bytearray": bytes(value).decode("latin-1")}
        if isinstance(value, complex | Decimal | Fraction):
            (name,) = [kind.__name__ for kind in (complex, Decimal, Fraction) if isinstance(value, kind)]
            return {name: str(value).strip("()")}
        if isinstance(value, range):
            return {"range": [value.start, value.stop, value.step]}
        self.held.append(value)
        return {"mine": len(self.held) - 1}

    def _unpack(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._unpack(each) for each in value]
        if not isinstance(value, dict):
            return value
        ((tag, inside),) = value.items()
        if tag == "mine":
            return Remote(self, int(inside))
        if tag == "yours":
            return self.held[inside]
        if tag == "dict":
            return {self._unpack(key): self._unpack(each) for key, each in inside}
        if tag == "range":
            return range(*inside)
        if tag in _TEXTS:
            return _TEXTS[tag](inside)
        return _CONTAINERS[tag](self._unpack(each) for each in inside)

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        try:
            arguments = [self._unpack(each) for each in message.get("args", ())]
            named = {name: self._unpack(each) for name, each in message.get("named", {}).items()}
            value = self._do(message, arguments, named)
            # A function that gives nothing may have changed what it was given; the other side has the original.
            after = [self.pack(each) if _changes(each) else None for each in (*arguments, *named.values())]
            return {"value": self.pack(value), "after": after}
        except GoneError:
            raise
        except BaseException as error:  # Code of a model may raise whatever it likes.
            return {"raised": _described(error)}

    def _do(self, message: Mapping[str, Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        target = self.held[message["of"]]
        if self.guarded:
            _check_may(target, message, arguments)
        if message["do"] == "attribute":
            return getattr(target, message["name"])
        if message["do"] == "method":
            return _method(target, message["name"])(*arguments, **named)
        return target(*arguments, **named)

    def _copy_back(self, arguments: Sequence[Any], message: Mapping[str, Any]) -> None:
        for mine, theirs in zip(arguments, message.get("after") or (), strict=False):
            if not _changes(mine):
                continue
            now = self.unpack(theirs)
            if type(now) is not type(mine):
                continue
            if isinstance(mine, list | bytearray):
                mine[:] = now
            else:
                mine.clear()
                mine.update(now)

    def _send(self, message: Mapping[str, Any]) -> None:
        text = json.dumps(message).encode() + b"\n"
        if len(text) > MAX_MESSAGE:
            text = (
                json.dumps({"raised": [["MemoryError"], f"a value of {len(text)} bytes is too long"]}).encode() + b"\n"
            )
        try:
            self._socket.sendall(text)
        except OSError:
            raise GoneError("it has ended") from None

    def _receive(self) -> dict[str, Any]:
        try:
            line = self._lines.readline(MAX_MESSAGE + 1)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise GoneError("it has ended")
        return message


class Remote:
    """Stands for an object of the other side: it can be called, asked for attributes and items, and walked through.

    It decides nothing: it equals only itself, membership is found out by walking, and on a guarded side it is neither
    true nor false.
    """

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _ask(self, "call", args=arguments, named=named)

    def __getattr__(self, name: str) -> Any:
        return _ask(self, "attribute", name=name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remote) and hash(self) == hash(other)

    def __hash__(self) -> int:
        number: int = object.__getattribute__(self, "_number")
        return number

    def __exit__(self, *error: Any) -> None:
        _ask(self, "method", name="__exit__", args=(None, None, None), named={})

    def __bool__(self) -> bool:
        if not object.__getattribute__(self, "_peer").guarded:
            return True
        raise TypeError("an object of the program's own class is neither true nor false here; look at its values")


_OPERATIONS = (
    *("__iter__", "__next__", "__len__", "__getitem__", "__setitem__", "__delitem__", "__setattr__"),
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__floordiv__", "__mod__"),
    *("__pow__", "__matmul__", "__neg__", "__pos__", "__abs__", "__and__", "__or__", "__xor__", "__invert__"),
    *("__int__", "__float__", "__index__", "__str__", "__repr__", "__enter__"),
)


def _operation(name: str) -> Callable[..., Any]:
    def operate(self: Remote, *arguments: Any) -> Any:
        return _ask(self, "method", name=name, args=arguments, named={})

    return operate


for _name in _OPERATIONS:
    setattr(Remote, _name, _operation(_name))


def _ask(remote: Remote, do: str, **more: Any) -> Any:
    peer: Peer = object.__getattribute__(remote, "_peer")
    return peer.ask(do, of=object.__getattribute__(remote, "_number"), **more)


def _method(target: Any, name: str) -> Callable[..., Any]:
    """A special method is looked up on the class, as Python does."""
    method = getattr(type(target), name, None)
    if method is None:
        raise TypeError(f"{type(target).__name__} has no {name}")
    return lambda *arguments, **named: method(target, *arguments, **named)


def _check_may(target: Any, message: Mapping[str, Any], arguments: Sequence[Any]) -> None:
    name = message.get("name")
    if message["do"] == "method":
        name = arguments[0] if name == "__setattr__" else None if name in _OPERATIONS else name
    if name is not None and (name.startswith("_") or type(target).__module__ != "__main__"):
        raise AttributeError(f"{name!r} of a {type(target).__name__} is not shown")


def _changes(value: Any) -> bool:
    return isinstance(value, list | dict | set | bytearray)


def _described(error: BaseException) -> list[Any]:
    """The names of an exception's classes, the nearest first, and its words."""
    try:
        words = str(error)[:1000]
    except BaseException:  # A __str__ of a model's may raise whatever it likes.
        words = ""
    return [[kind.__name__ for kind in type(error).__mro__], words]


def _exception(described: Any, *, may_stop: bool) -> Exception:
    """The nearest of Python's own exceptions with these words.

    The end of an iteration is only that where one goes on; elsewhere `all(map(...))` would take it for its own end.
    """
    try:
        names, words = described
        for name in names:
            kind = vars(builtins).get(str(name))
            if kind in (StopIteration, StopAsyncIteration) and not may_stop:
                continue
            if isinstance(kind, type) and issubclass(kind, Exception):
                return kind(str(words))
    except (TypeError, ValueError):
        return GoneError("it answered what is no exception")
    return RuntimeError(f"it raised {str(names)[:100]}")
