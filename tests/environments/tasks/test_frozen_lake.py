"""The frozen lake: every map can be won, slips are the same for everybody, and bad words are told."""

import pytest

from components.environments.tasks.frozen_lake import FrozenLake
from components.errors import ConfigError
from components.types import MalformedCall, Message, Role, Task
from tests.environments.tasks.playing import play, say, splits

MAP = Task("t", "map", data={"map": ["S.O", "..G", "O.."]})


@pytest.mark.parametrize("options", [{}, {"slippery": True, "holes": 0.1}, {"size": 6, "holes": 0.4}])
def test_every_map_is_won_by_its_solution(options):
    counts = {"train_tasks": 20, "test_tasks": 10}
    train, test = splits(FrozenLake, **options, **counts)
    assert (len(train), len(test)) == (20, 10)
    environment = FrozenLake(**options, **counts)
    for task in train + test:
        solved = play(environment, task, environment.solution(task))
        assert (solved.reward, solved.done) == (1.0, True)
        assert solved.reasons["reward"].startswith("reached the goal in move ")
        assert solved.observations[-1].reward == 1.0


def test_a_walk_is_shown_and_ends_at_the_goal():
    played = play(FrozenLake(), MAP, [say("down"), say("I go right."), say("RIGHT")])
    assert [each.messages[0].content.split("\n\n")[1] for each in played.observations[:-1]] == [
        "P.O\n..G\nO..",
        "..O\nP.G\nO..",
        "..O\n.PG\nO..",
    ]
    assert (played.reward, played.done, played.reasons) == (1.0, True, {"reward": "reached the goal in move 3"})


def test_a_hole_ends_the_game_without_reward():
    played = play(FrozenLake(), MAP, [say("right"), say("right")])
    assert (played.reward, played.done, played.reasons) == (0.0, True, {"reward": "fell into a hole in move 2"})


def test_the_edge_holds_and_moves_run_out():
    played = play(FrozenLake(max_moves=6), MAP, [say("left")] * 9)
    assert len(played.observations) == 7
    assert played.observations[3].messages[0].content.endswith("P.O\n..G\nO..")
    assert (played.reward, played.done, played.reasons) == (0.0, True, {"reward": "did not arrive within 6 moves"})


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (say("hm"), "it says no direction"),
        (say("up or down?"), "it says down, up"),
        (say("upwards"), "it says no direction"),
        (Message(Role.ASSISTANT, "", malformed_calls=(MalformedCall("{", "cut"),)), "it says no direction"),
    ],
)
def test_a_turn_without_one_direction_moves_nowhere_and_is_told_why(said, reason):
    reply = play(FrozenLake(), MAP, [said]).observations[1]
    assert reply.messages[0].content.startswith(f"You stay where you are: {reason};")
    assert reply.messages[0].content.endswith("P.O\n..G\nO..")


def test_slips_are_a_function_of_map_and_move_and_go_each_way_in_a_third_of_the_cases():
    environment = FrozenLake(slippery=True, max_moves=300, holes=0.0)
    task = Task("open", "", data={"map": ["S" + "." * 11, *["." * 12] * 10, "." * 11 + "G"]})
    first = play(environment, task, [say("right"), say("left")] * 100)
    assert first.observations == play(environment, task, [say("right"), say("left")] * 100).observations
    slipped = sum("You slip" in each.messages[0].content for each in first.observations[1:201])
    assert 100 <= slipped <= 165  # 2/3 of 200 is 133


@pytest.mark.parametrize("options", [{"size": 1}, {"holes": 0.9}, {"max_moves": 3}, {"train_tasks": 0}])
def test_options_that_cannot_work_are_told(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        FrozenLake(**options)
