import random

import pytest

from components.engine.scheduler import Copy, Prefill, Request, Scheduler
from components.types import SequenceId

CHUNK = 16
BUDGET = CHUNK


def request(
    number: int, tokens: list[int], task: str = "", turn: int = 0, member: int = 0, max_tokens: int = 5
) -> Request:
    return Request(number, tuple(tokens), SequenceId(task or f"task-{number}", member=member, turn=turn), max_tokens)


def drain(scheduler: Scheduler) -> list[Copy | Prefill]:
    """All copies and prefills that the admitted requests need."""
    work = []
    while (each := scheduler.next_work(BUDGET)) is not None:
        work.append(each)
    return work


def play(scheduler: Scheduler, each: Request, sampled: list[int]) -> list[Copy | Prefill]:
    """One request from arrival to its end, alone."""
    scheduler.submit(each)
    scheduler.admit()
    work = drain(scheduler)
    (slot,) = scheduler.ready()
    scheduler.advance(slot, sampled)
    scheduler.finish(slot)
    return work


def test_a_prompt_is_prefilled_but_for_its_last_token_in_pieces_that_end_at_multiples_of_the_chunk():
    scheduler = Scheduler(2, 100, CHUNK)
    tokens = list(range(40))
    scheduler.submit(request(1, tokens))
    scheduler.admit()
    assert drain(scheduler) == [
        Prefill(0, 0, tuple(range(16))),
        Prefill(0, 16, tuple(range(16, 32))),
        Prefill(0, 32, tuple(range(32, 39))),
    ]
    assert [slot.index for slot in scheduler.ready()] == [0]


def test_a_prompt_of_one_token_needs_no_prefill():
    scheduler = Scheduler(1, 10, CHUNK)
    scheduler.submit(request(1, [7]))
    scheduler.admit()
    assert drain(scheduler) == []
    assert len(scheduler.ready()) == 1


def test_a_group_prefills_its_prompt_once_and_copies_it():
    scheduler = Scheduler(4, 100, CHUNK)
    tokens = list(range(20))
    for member in range(4):
        scheduler.submit(request(member, tokens, task="one", member=member))
    scheduler.admit()
    work = drain(scheduler)
    assert work[:2] == [Prefill(0, 0, tuple(range(16))), Prefill(0, 16, tuple(range(16, 19)))]
    assert sorted(copy.target for copy in work[2:]) == [1, 2, 3]
    assert len(scheduler.ready()) == 4
    assert (scheduler.prefilled_tokens, scheduler.reused_tokens) == (19, 57)


def test_a_member_that_comes_later_copies_from_a_live_slot():
    scheduler = Scheduler(2, 100, CHUNK)
    scheduler.submit(request(1, list(range(20)), task="one"))
    scheduler.admit()
    drain(scheduler)
    scheduler.advance(scheduler.slots[0], [5, 6, 7])
    scheduler.submit(request(2, list(range(20)), task="one", member=1))
    scheduler.admit()
    assert drain(scheduler) == [Copy(0, 1)]


def test_followers_of_a_cancelled_leader_prefill_themselves():
    scheduler = Scheduler(3, 100, CHUNK)
    for number in range(3):
        scheduler.submit(request(number, list(range(40)), task="one", member=number))
    scheduler.admit()
    assert scheduler.next_work(BUDGET) == Prefill(0, 0, tuple(range(16)))
    scheduler.cancel(0)
    work = drain(scheduler)
    assert len(scheduler.ready()) == 2
    assert [each for each in work if isinstance(each, Prefill)] == [
        Prefill(1, 16, tuple(range(16, 32))),
        Prefill(1, 32, tuple(range(32, 39))),
    ]


def test_other_prompts_share_a_prefix_up_to_a_boundary_between_chunks():
    scheduler = Scheduler(2, 100, CHUNK)
    play(scheduler, request(1, [*range(40)]), [9])
    work = play(scheduler, request(2, [*range(36), 99, 98]), [9])
    assert work == [Copy(0, 1), Prefill(1, 32, (32, 33, 34, 35, 99))]


def test_sampled_tokens_are_never_shared_with_another_episode():
    scheduler = Scheduler(2, 100, CHUNK)
    play(scheduler, request(1, list(range(10))), list(range(10, 60)))
    assert play(scheduler, request(2, list(range(60))), [1])[0] == Prefill(1, 0, tuple(range(16)))


def test_the_next_turn_prefills_only_what_is_new():
    scheduler = Scheduler(2, 100, CHUNK)
    play(scheduler, request(1, list(range(20)), task="one"), [50, 51])
    work = play(scheduler, request(2, [*range(20), 50, 51, 60, 61], task="one", turn=1), [1])
    assert work == [Prefill(0, 21, (51, 60))]


def test_a_slot_that_was_lent_is_prefilled_again():
    scheduler = Scheduler(1, 100, CHUNK)
    play(scheduler, request(1, list(range(20)), task="one"), [50, 51])
    play(scheduler, request(2, [8, 8, 8], task="two"), [1])
    work = play(scheduler, request(3, [*range(20), 50, 51, 60, 61], task="one", turn=1), [1])
    assert [each.start for each in work] == [0, 16]


def test_the_least_recently_used_slot_is_lent_first_and_one_that_is_awaited_last():
    scheduler = Scheduler(2, 100, CHUNK)
    play(scheduler, request(1, [1, 2, 3], task="one"), [4])
    play(scheduler, request(2, [5, 6, 7], task="two"), [8])
    assert play(scheduler, request(3, [9, 9], task="three"), [1])[0].slot == 0
    scheduler.submit(request(4, [9, 8], task="four"))
    scheduler.submit(request(5, [5, 6, 7, 8, 9], task="two", turn=1))
    scheduler.admit()
    assert scheduler.slots[1].request.id == 5
    assert scheduler.slots[0].request.id == 4


def test_after_a_swap_a_new_episode_shares_nothing_and_a_running_one_keeps_its_own():
    scheduler = Scheduler(3, 100, CHUNK)
    play(scheduler, request(1, list(range(20)), task="one"), [50, 51])
    scheduler.swap(recompute=False)
    assert [each.start for each in play(scheduler, request(2, list(range(20)), task="two"), [1])] == [0, 16]
    kept = play(scheduler, request(3, [*range(20), 50, 51, 60], task="one", turn=1), [1])
    assert kept == [Prefill(0, 21, (51,))]


def test_a_first_turn_never_takes_over_what_an_older_episode_of_the_same_name_left():
    scheduler = Scheduler(2, 100, CHUNK)
    play(scheduler, request(1, list(range(20)), task="one"), [50])
    scheduler.swap(recompute=False)
    assert play(scheduler, request(2, list(range(20)), task="one"), [51])[0].start == 0
    later = play(scheduler, request(3, [*range(20), 51, 60], task="one", turn=1), [1])
    assert later == [Prefill(1, 20, (51,))]


def test_with_recompute_a_swap_makes_live_slots_prefill_again():
    scheduler = Scheduler(1, 100, CHUNK)
    scheduler.submit(request(1, [1, 2, 3]))
    scheduler.admit()
    drain(scheduler)
    scheduler.advance(scheduler.slots[0], [4, 5])
    scheduler.swap(recompute=True)
    assert drain(scheduler) == [Prefill(0, 0, (1, 2, 3, 4))]


def test_prompts_take_turns_so_that_a_long_one_does_not_hold_up_a_short_one():
    scheduler = Scheduler(2, 1000, CHUNK)
    scheduler.submit(request(1, [1] * 500))
    scheduler.submit(request(2, [2] * 10))
    scheduler.admit()
    assert [scheduler.next_work(BUDGET).slot for _ in range(3)] == [0, 1, 0]


def test_a_piece_that_is_over_the_budget_waits_for_the_next_round():
    scheduler = Scheduler(2, 100, CHUNK)
    scheduler.submit(request(1, [1] * 10))
    scheduler.submit(request(2, [2] * 10))
    scheduler.admit()
    first = scheduler.next_work(BUDGET)
    assert scheduler.next_work(BUDGET - len(first.tokens)) is None
    assert scheduler.next_work(BUDGET).slot == 1


def test_one_chunk_is_prefilled_between_steps_unless_more_wait_for_prompts_than_decode():
    scheduler = Scheduler(5, 1000, CHUNK)
    for number in range(2):
        scheduler.submit(request(number, [number]))
    scheduler.admit()
    assert len(scheduler.ready()) == 2
    scheduler.submit(request(2, [2] * 500))
    scheduler.submit(request(3, [3] * 500))
    scheduler.admit()
    assert scheduler.prefill_budget() == CHUNK
    scheduler.cancel(0)
    assert scheduler.prefill_budget() == 2 * CHUNK


def test_a_prompt_that_fills_the_capacity_is_refused():
    with pytest.raises(ValueError, match="10 tokens in a slot of 10"):
        Scheduler(1, 10, CHUNK).submit(request(1, [1] * 10))


def test_whatever_arrives_ends_or_is_swapped_the_cache_holds_what_the_scheduler_says():
    """A model of the cache: each filled position remembers the token and all before it."""
    dice = random.Random(0)
    scheduler = Scheduler(3, 80, CHUNK)
    cache: list[list[int]] = [[-1] * 80 for _ in range(3)]
    numbers = iter(range(10_000))
    served = 0
    for _ in range(3000):
        match dice.choice(["submit", "step", "step", "step", "finish", "cancel", "swap"]):
            case "submit":
                task = dice.choice("abc")
                tokens = [ord(task) + each % 3 for each in range(dice.randint(1, 50))]
                scheduler.submit(request(next(numbers), tokens, task=task, turn=dice.randint(0, 2)))
            case "step":
                scheduler.admit()
                for work in drain(scheduler):
                    if isinstance(work, Copy):
                        cache[work.target] = list(cache[work.source])
                    else:
                        cache[work.slot][work.start : work.start + len(work.tokens)] = work.tokens
                for slot in scheduler.ready():
                    assert cache[slot.index][: slot.filled] == slot.tokens[: slot.filled]
                    if len(slot.tokens) < 70:
                        cache[slot.index][slot.filled] = slot.tokens[-1]
                        scheduler.advance(slot, [dice.randint(0, 9)])
                        served += 1
            case "finish" if scheduler.ready():
                scheduler.finish(dice.choice(scheduler.ready()))
            case "cancel" if scheduler.waiting:
                scheduler.cancel(dice.choice(list(scheduler.waiting)))
            case "swap":
                scheduler.swap(recompute=dice.random() < 0.3)
    assert served > 500


def test_only_so_many_requests_as_rows_start_and_the_other_slots_keep_their_episodes():
    scheduler = Scheduler(4, 100, CHUNK, rows=2)
    for number in range(3):
        scheduler.submit(request(number, [number, 1]))
    scheduler.admit()
    assert ([slot.index for slot in scheduler.live()], scheduler.room, len(scheduler.waiting)) == ([0, 1], 0, 1)
    drain(scheduler)
    scheduler.finish(scheduler.slots[0])
    scheduler.admit()
    assert [slot.index for slot in scheduler.live()] == [1, 2]


def test_a_slot_of_an_episode_that_is_over_is_lent_before_one_that_was_used_longer_ago():
    scheduler = Scheduler(2, 100, CHUNK)
    play(scheduler, request(1, [1, 2, 3], task="one"), [4])
    over = request(2, [5, 6, 7], task="two")
    play(scheduler, over, [8])
    scheduler.forget(over.episode)
    assert play(scheduler, request(3, [9, 9], task="three"), [1])[0].slot == 1
    assert play(scheduler, request(4, [1, 2, 3, 4, 5], task="one", turn=1), [1]) == [Prefill(0, 3, (4,))]


def test_tokens_are_counted_as_recomputed_when_a_later_turn_finds_its_slot_lent():
    scheduler = Scheduler(1, 100, CHUNK)
    first, other = request(1, list(range(20)), task="one"), request(2, [8, 8, 8], task="two")
    play(scheduler, first, [50, 51])
    play(scheduler, request(3, [*range(20), 50, 51, 60], task="one", turn=1), [52])
    assert scheduler.recomputed_tokens == 0
    play(scheduler, other, [1])
    play(scheduler, request(4, [*range(20), 50, 51, 60, 52, 61], task="one", turn=2), [1])
    # All of the 25 tokens of the context but the last, which is fed by the decode step.
    assert scheduler.recomputed_tokens == 24
    play(scheduler, request(5, [7, 7, 7], task="three"), [1])
    assert scheduler.recomputed_tokens == 24
