"""The program of one grader process: functions and arguments in through a pipe, results out.

Started by grader_pool.py as a file, so that it imports nothing but the standard library and what the graders need.
"""

import pickle
import signal
import sys
from multiprocessing.connection import Connection

MAX_ANSWER = 1_000_000  # bytes


def serve(link: Connection) -> None:
    """Answer calls until the other side is gone.

    A call is a function, then (arguments, time-out). Each of the two is answered with (True, value) or (False, text).
    """
    sys.path[:] = link.recv()
    while True:
        try:
            function = link.recv()
        except EOFError:
            return
        except Exception as error:  # The grader's module cannot be imported here: the caller's to know.
            link.send((False, f"{type(error).__name__}: {error}"))
            continue
        link.send((True, None))
        arguments, timeout = link.recv()
        # The system ends this process by itself should the one that would kill it be dead by then.
        signal.setitimer(signal.ITIMER_REAL, 2 * timeout + 1)
        try:
            answer = (True, function(*arguments))
        except Exception as error:  # A grader's fault is an answer, too.
            answer = (False, f"{type(error).__name__}: {str(error)[:2000]}")
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(link, answer)


def _send(link: Connection, answer: tuple[bool, object]) -> None:
    try:
        # What is read here stops the threads over there for as long as that takes.
        payload = pickle.dumps(answer)
        if len(payload) > MAX_ANSWER:
            payload = pickle.dumps((False, f"an answer of {len(payload)} bytes; it may have {MAX_ANSWER}"))
    except Exception as error:  # What cannot be pickled raises whatever it likes.
        payload = pickle.dumps((False, f"{type(error).__name__}: its result cannot be sent back: {error}"))
    link.send_bytes(payload)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
