"""The quickstart's environment."""

import asyncio

import pytest

from components.environments.arithmetic import Arithmetic
from components.environments.rewards import as_reward_parts
from components.errors import ConfigError
from components.types import MalformedCall, Message, Role, ToolCall


def play(environment, task, *messages):
    async def run():
        observations = [await environment.reset(task)]
        observations += [await environment.step(message) for message in messages]
        return observations, sum(as_reward_parts(await environment.reward(), "play").values())

    return asyncio.run(run())


def call(expression):
    return Message(Role.ASSISTANT, "", tool_calls=(ToolCall("calculator", {"expression": expression}),))


def test_tasks_are_the_same_every_time_disjoint_and_in_range():
    environment = Arithmetic(low=2, high=30, train_tasks=500, test_tasks=100, seed=3)
    train, test = environment.tasks("train"), environment.tasks("test")
    assert train == Arithmetic(low=2, high=30, train_tasks=500, test_tasks=100, seed=3).tasks("train")
    assert (len({task.id for task in train}), len({task.id for task in test})) == (500, 100)
    assert not {task.id for task in train} & {task.id for task in test}
    for task in [*train, *test]:
        operator = next(sign for sign in "+-*" if sign in task.prompt)
        a, b = map(int, task.prompt.split(operator))
        assert 2 <= min(a, b) <= max(a, b) <= 30
        assert int(task.answer) == {"+": a + b, "-": a - b, "*": a * b}[operator]


def test_the_test_tasks_do_not_depend_on_the_number_of_train_tasks_and_another_seed_gives_others():
    assert Arithmetic(train_tasks=10).tasks("test") == Arithmetic(train_tasks=20).tasks("test")
    assert Arithmetic(seed=1).tasks("test") != Arithmetic(seed=2).tasks("test")


def test_worked_examples_stand_before_the_question_and_are_no_tasks():
    environment = Arithmetic(low=12, high=30, operators=["+"], train_tasks=350, test_tasks=5, worked_examples=1)
    assert "12+30" not in {task.id for split in ("train", "test") for task in environment.tasks(split)}
    (opening,), _ = play(environment, environment.tasks("test")[0])
    assert [(message.role, message.content) for message in opening.messages] == [
        (Role.USER, "12+30"),
        (Role.ASSISTANT, ""),
        (Role.USER, environment.tasks("test")[0].prompt),
    ]
    assert opening.messages[1].tool_calls == (ToolCall("calculator", {"expression": "12+30"}),)


def test_the_result_of_a_call_is_the_answer():
    environment = Arithmetic()
    task = environment.tasks("train")[0]
    (_, end), reward = play(environment, task, call(task.prompt))
    assert (end.done, end.messages[0].content, reward) == (True, task.answer, 1.0)
    assert play(environment, task, call("1+1"))[1] == 0.0
    assert play(environment, task, Message(Role.ASSISTANT, f"it is {task.answer}"))[1] == 1.0
    assert play(environment, task, Message(Role.ASSISTANT, "no idea"))[1] == 0.0


@pytest.mark.parametrize(
    "message",
    [
        call("1/0"),
        call("two"),
        Message(Role.ASSISTANT, "", malformed_calls=(MalformedCall("<tool>", "it has no end"),)),
    ],
)
def test_a_failed_call_ends_the_single_turn_without_reward(message):
    environment = Arithmetic()
    (_, end), reward = play(environment, environment.tasks("train")[0], message)
    assert (end.done, reward) == (True, 0.0)
    assert end.messages[0].content.startswith("error: ")


def test_with_text_answers_the_result_is_fed_back_and_the_final_text_is_graded():
    environment = Arithmetic(answer="text")
    task = environment.tasks("train")[0]
    (_, reply, end), reward = play(environment, task, call(task.prompt), Message(Role.ASSISTANT, task.answer))
    assert (reply.done, reply.messages[0].content, end.done, reward) == (False, task.answer, True, 1.0)
    assert play(environment, task, call(task.prompt))[1] == 0.0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"operators": ["/"]}, "operators"),
        ({"operators": []}, "operators"),
        ({"low": 5, "high": 4}, "low"),
        ({"worked_examples": 9}, "worked_examples"),
        ({"train_tasks": 0}, "train_tasks"),
        ({"low": 1, "high": 3}, "there are 23 problems"),
    ],
)
def test_options_that_cannot_work_are_named(options, field):
    with pytest.raises(ConfigError, match=field):
        Arithmetic(**options)
