from components.telemetry.episodes import EpisodeTraces
from components.telemetry.spans import Span, Tail, clear, record


def episode(name: str, outcome: str = "finished") -> list[Span]:
    def span(kind: str, start: float, end: float, **attributes: object) -> Span:
        return Span(kind, start, end, "MainThread", {"episode": name, **attributes})

    return [
        span("reset", 0.0, 1.0, turn=0),
        span("decode of turn", 1.2, 2.0, turn=0),
        span("chat", 1.0, 2.0, turn=0),
        span("execute_tool", 2.0, 2.5, turn=0, tool="search"),
        span("execute_tool", 2.0, 2.7, turn=0, tool="search"),
        span("step", 2.0, 3.0, turn=0),
        span("chat", 3.0, 4.0, turn=1),
        span("reward", 4.0, 5.0, turn=1),
        span("rollout", 0.0, 5.0, outcome=outcome),
    ]


def test_an_episode_is_one_tree():
    nodes = EpisodeTraces().add(episode("task/0/0/0"))
    by_id = {node.id: node for node in nodes}
    assert len(by_id) == len(nodes) == 11  # nine, and a span for each of the two turns
    path = {}
    for node in nodes:
        names, at = [], node
        while at is not None:
            names.append(at.span.name)
            at = by_id[at.parent] if at.parent else None
        path.setdefault(node.span.name, []).append(" < ".join(names))
    assert path["decode of turn"] == ["decode of turn < chat < turn < rollout"]
    assert path["execute_tool"] == ["execute_tool < step < turn < rollout"] * 2
    assert path["reward"] == ["reward < rollout"]
    assert {node.trace for node in nodes} == {nodes[0].trace}
    turn = next(node.span for node in nodes if node.span.name == "turn")
    assert (turn.start, turn.end) == (1.0, 3.0)


def test_sampling_keeps_every_failure():
    traces = EpisodeTraces(keep_every=10)
    kept = dict.fromkeys(("finished", "failed"), 0)
    for number in range(200):
        for outcome in kept:
            kept[outcome] += bool(traces.add(episode(f"{outcome}-{number}/0/0/0", outcome)))
    assert kept["failed"] == 200
    assert 5 <= kept["finished"] <= 40


def test_the_wait_for_training_follows_an_episode_that_was_kept():
    traces = EpisodeTraces()
    traces.add(episode("a/0/0/0"))
    queue = Span("training queue", 5.0, 9.0, "MainThread", {"episode": "a/0/0/0", "step": 3})
    (node,) = traces.add([queue])
    assert node.parent is not None
    assert traces.add([Span("training queue", 5.0, 9.0, "MainThread", {"episode": "unknown", "step": 3})]) == []


def test_what_belongs_to_no_episode_goes_through_but_for_dispatches():
    spans = [Span(name, 0.0, 1.0, "trainer", {}) for name in ("microbatch", "decode", "weight_sync", "prefill")]
    assert [node.span.name for node in EpisodeTraces().add(spans)] == ["microbatch", "weight_sync"]


def test_a_tail_sees_each_span_once_and_those_of_threads_that_ended():
    import threading

    clear()
    record("before", 0.0, 1.0)
    tail = Tail()
    record("first", 1.0, 2.0)
    thread = threading.Thread(target=record, args=("elsewhere", 2.0, 3.0))
    thread.start()
    thread.join()
    assert [each.name for each in tail.read()] == ["first", "elsewhere"]
    assert tail.read() == []
    short = threading.Thread(target=record, args=("short", 3.0, 4.0))
    short.start()
    short.join()
    # The first record of yet another thread folds away those of threads that have ended.
    other = threading.Thread(target=record, args=("other", 4.0, 5.0))
    other.start()
    other.join()
    assert [each.name for each in tail.read()] == ["short", "other"]
    tail.close()
