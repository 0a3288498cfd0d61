"""Which trajectories are in the page, what of them, and how they get there."""

import itertools
import json

from components.telemetry.viewer import MEASURES, choose, extremes, points, viewer_json

HOSTILE = "</script><!--<script>alert(1)</script>"


def record(step: int, **more) -> dict:
    values = {"step": step, "task_id": f"t{step}", "reward": 0.5, "outcome": "finished", "messages": []}
    return values | more


def data(records: list[dict], **limits) -> dict:
    return json.loads(str(viewer_json(choose(records, **limits))))


def test_a_small_run_is_there_whole_in_order_of_its_steps():
    found = data([record(3), record(1), record(2)])
    assert [(each["id"], each["step"]) for each in found["list"]] == [(0, 1), (1, 2), (2, 3)]


def test_the_odd_ones_of_a_long_run_are_there_and_the_rest_is_spread():
    records = [record(step) for step in range(1, 2001)]
    records[777] |= {"reward": -3.0}
    records[1234] |= {"failure": {"kind": "sandbox", "message": "gone"}, "outcome": "failed", "reward": None}
    records[1500] |= {"staleness": 9}
    records[31] |= {"tool_errors": 2}
    sample = choose(records, most=100, played=64_000)
    steps = [each["step"] for each in sample.talks]
    assert {778, 1235, 1501, 32} <= set(steps)
    assert (len(steps), sample.written, sample.played) == (100, 2000, 64_000)
    assert max(b - a for a, b in itertools.pairwise(steps)) < 120
    assert [each["id"] for each in sample.talks] == list(range(100))


def test_bytes_have_a_limit_and_tokens_go_before_trajectories():
    turn = {"prompt": "p", "tokens": ["word "] * 400, "logprobs": [-0.125] * 400, "versions": [[0, 400]]}
    records = [record(step, turns=[turn]) for step in range(60)]
    sample = choose(records, most_bytes=100_000)
    text = str(viewer_json(sample))
    assert len(text.encode()) < 110_000
    with_tokens = [bool(each["turns"]) for each in sample.talks]
    assert 10 < sum(with_tokens) < len(with_tokens)
    assert with_tokens.index(True) < 10, "they are spread over the run, too"


def test_no_text_can_end_the_script_or_open_a_comment():
    turn = {"prompt": HOSTILE, "tokens": [HOSTILE], "logprobs": [-1.0], "versions": [[0, 1]], "finish": HOSTILE}
    said = {
        "role": HOSTILE,
        "content": HOSTILE,
        "name": HOSTILE,
        "tool_calls": [{"name": HOSTILE, "arguments": HOSTILE}],
    }
    hostile = record(1, task_id=HOSTILE, outcome=HOSTILE, messages=[said], turns=[turn], reward_parts={HOSTILE: 1.0})
    text = str(viewer_json(choose([hostile])))
    assert "<" not in text
    assert ">" not in text
    assert json.loads(text)["list"][0]["messages"][0]["content"] == HOSTILE


def test_half_of_a_surrogate_pair_and_numbers_that_are_not_finite_are_json():
    turn = {"prompt": "\ud83d", "tokens": ["\udc69"], "logprobs": [float("-inf")], "versions": [[0, 1]]}
    text = str(viewer_json(choose([record(1, turns=[turn], reward=float("nan"))])))
    text.encode("utf-8")
    found = json.loads(text)["list"][0]
    assert (found["turns"][0]["tokens"], found["turns"][0]["logprobs"], found["reward"]) == (["\udc69"], [None], None)


def test_a_long_text_that_comes_again_is_written_once():
    prompt = "You can call tools. " * 20
    records = [record(step, messages=[{"role": "system", "content": prompt}]) for step in range(30)]
    found = data(records)
    assert found["texts"] == [prompt]
    assert all(each["messages"][0]["content"] == 0 for each in found["list"])


def test_long_texts_and_talks_are_cut_and_what_is_left_out_is_counted():
    messages = [{"role": "assistant", "content": "word " * 5_000}] * 40
    turn = {"tokens": ["a"] * 4_000, "logprobs": [-1.0] * 4_000, "versions": [[0, 4_000]]}
    page = data([record(1, messages=messages, turns=[turn, turn])])
    (found,) = page["list"]
    assert page["texts"][found["messages"][0]["content"]].endswith("(21\u202f000 more characters)")
    assert len(found["messages"]) + found["more"] == 40
    assert [(len(each["tokens"]), each["more"]) for each in found["turns"]] == [(1500, 2500), (0, 4000)]


def test_the_largest_mismatch_is_that_of_either_sign_and_absent_where_none_is_known():
    known = {"tokens": ["a", "b"], "logprobs": [-1.0, -2.0], "gaps": [-0.25, None], "versions": [[0, 2]]}
    unknown = {key: value for key, value in known.items() if key != "gaps"}
    found = data([record(1, turns=[known]), record(2, turns=[unknown])])
    assert [each["gap"] for each in found["list"]] == [0.25, None]
    assert [each["turns"][0]["gaps"] for each in found["list"]] == [[-0.25, None], []]


def test_tokens_of_an_older_version_are_no_mismatch_of_engine_and_trainer():
    turn = {
        "tokens": list("abc"),
        "logprobs": [-1.0] * 3,
        "gaps": [0.5, 0.001, -0.002],
        "versions": [[2, 1], [3, 2]],
    }
    (found,) = data([record(4, turns=[turn])])["list"]
    assert (found["gap"], found["drift"]) == (0.002, 0.5)
    (found,) = data([record(5, turns=[turn])])["list"]
    assert (found["gap"], found["drift"]) == (None, 0.5)


def test_the_tools_that_were_used_are_told_with_their_ends_and_times():
    calls = [[0, "search", "timeout", 5.0], [1, "calculator", "ok", 0.25]]
    assert data([record(1, calls=calls)])["list"][0]["used"] == ["search timeout 5 s", "calculator 0.25 s"]


def test_points_lead_to_trajectories_and_the_outlier_is_named_first():
    records = [record(step, reward=1.0 if step != 7 else 0.25) for step in range(1, 20)]
    sample = choose(records)
    reward = next(each for each in MEASURES if each.key == "reward")
    found = points(sample, reward)
    assert found[6] == (7, 0.25, "#trajectory-6", "step 7, t7: reward 0.25")
    assert extremes(found, reward)[0] == ("#trajectory-6", "step 7, t7: reward 0.25")
    assert extremes(found[:6], reward) == [], "nothing stands out where all are the same"
