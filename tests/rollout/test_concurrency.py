import random

from components.rollout.concurrency import AutoConcurrency


def auto(group_size: int = 4, tasks_per_step: int = 8, max_staleness: int = 4) -> AutoConcurrency:
    return AutoConcurrency(group_size=group_size, tasks_per_step=tasks_per_step, max_staleness=max_staleness)


def update(controller: AutoConcurrency, waited: float = 0.0, recomputed: float = 0.0, queued: float = 0.0) -> int:
    return controller.update(trainer_waited=waited, recomputed=recomputed, queued=queued)


def test_it_starts_with_the_episodes_of_one_step():
    assert auto().limit == 32


def test_while_the_trainer_waits_it_grows_by_half_to_the_bound_of_pacing():
    controller = auto()
    # 32 * 1.5 = 48, 72, 108 (27 groups of four), 162 -> 160, which is (4 + 1) * 8 * 4.
    assert [update(controller, waited=0.5) for _ in range(5)] == [48, 72, 108, 160, 160]
    assert controller.at_bound


def test_it_stays_while_the_trainer_hardly_waits_and_nothing_presses():
    assert [update(auto(), waited=0.02, recomputed=0.1, queued=1.0) for _ in range(3)] == [32, 32, 32]


def test_contexts_that_are_computed_again_shrink_it_by_a_fifth_even_while_the_trainer_waits():
    # 32 * 0.8 = 25.6, which is six whole groups; 24 * 0.8 = 19.2 is four.
    controller = auto()
    assert [update(controller, waited=0.5, recomputed=0.11) for _ in range(2)] == [24, 16]


def test_a_queue_longer_than_the_slots_shrinks_it():
    assert update(auto(), queued=1.01) == 24


def test_after_the_first_pressure_it_grows_by_one_group_at_a_time():
    controller = auto()
    update(controller, recomputed=0.5)
    assert [update(controller, waited=0.5) for _ in range(3)] == [28, 32, 36]


def test_it_never_falls_below_a_group():
    controller = auto(group_size=8, tasks_per_step=2)
    assert [update(controller, recomputed=1.0) for _ in range(4)] == [8, 8, 8, 8]


def test_a_small_limit_still_grows_by_a_whole_group():
    assert update(auto(group_size=8, tasks_per_step=1, max_staleness=3), waited=0.3) == 16


def test_without_staleness_it_is_one_step_and_cannot_grow():
    controller = auto(max_staleness=0)
    assert controller.at_bound
    assert update(controller, waited=0.9) == 32


def test_whatever_it_is_told_it_is_whole_groups_within_its_bounds():
    dice, controller = random.Random(0), auto(group_size=6, tasks_per_step=5, max_staleness=2)
    for _ in range(1000):
        limit = update(controller, waited=dice.random(), recomputed=dice.random() ** 4, queued=3 * dice.random() ** 2)
        assert limit % 6 == 0
        assert 6 <= limit <= 90
