"""Two-hop questions: the land is the same every time, and it takes both documents to answer."""

from collections import Counter

import pytest

from components.environments.tasks.invented_land import QUESTIONS, document, make_land, questions
from components.environments.tasks.multi_hop import MultiHop
from components.errors import ConfigError
from components.types import Message, Role, ToolCall
from tests.environments.tasks.playing import play, say, splits


def test_the_land_is_the_same_every_time_and_every_thing_has_a_document():
    land = make_land(3)
    assert land == make_land(3) != make_land(4)
    assert len(land) == 400
    assert all(thing.name in document(thing) for thing in land.values())
    counts = Counter(thing.kind for thing in land.values())
    asked = questions(land)
    assert len(asked) == sum(counts[kind] for kind, *_ in QUESTIONS)
    assert len({each.text for each in asked}) == len(asked)


def test_no_answer_stands_in_the_document_that_the_question_names():
    land = make_land()
    answered = [each for each in questions(land) if each.answer in document(land[each.start])]
    # A town's name may come up in both by chance: such a question has a short cut, and there are few.
    assert len(answered) < 0.02 * len(questions(land))
    assert all(each.answer in document(land[each.bridge]) for each in questions(land))


def test_every_question_is_answered_by_two_searches_and_no_other_text_is_right():
    train, test = splits(MultiHop)
    assert (len(train), len(test)) == (500, 100)
    environment = MultiHop(found_weight=0.5)
    for task in train[:40] + test[:20]:
        solved = play(environment, task, environment.solution(task))
        assert solved.parts == {"answer": 1.0, "found": 0.5}, (task, solved.reasons)
        assert task.answer in solved.observations[2].messages[0].content
    wrong = play(environment, train[0], [say("Answer: Nowhere")])
    assert wrong.parts == {"answer": 0.0, "found": 0.0}
    assert wrong.reasons["answer"] == f"'Nowhere' is not {train[0].answer!r}"


@pytest.mark.parametrize("said", ["{}", "the {}.", "So it is.\n{}", "First I looked.\nanswer: {}.", "**Answer:** {}"])
def test_the_answer_is_what_stands_behind_the_last_mark_or_on_the_last_line(said):
    environment = MultiHop()
    task = next(iter(environment.tasks("train")))
    assert play(environment, task, [say(said.format(task.answer))]).reward == 1.0


def test_a_search_that_is_malformed_or_cut_off_earns_nothing_and_says_why():
    environment = MultiHop()
    task = next(iter(environment.tasks("train")))
    call = Message(Role.ASSISTANT, "", tool_calls=(ToolCall("search", {"q": "x"}),))
    played = play(environment, task, [call])
    assert "missing argument" in played.observations[1].messages[0].content
    assert (played.reward, played.reasons) == (0.0, {"reward": "there was no answer"})


@pytest.mark.parametrize(("options", "told"), [({"train_tasks": 900}, "questions beside"), ({"results": 0}, "results")])
def test_options_that_cannot_work_are_told(options, told):
    with pytest.raises(ConfigError, match=told):
        MultiHop(**options)
