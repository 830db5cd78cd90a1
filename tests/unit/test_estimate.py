from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qwen_mtp.estimate import remaining
from qwen_mtp.snapshot import Progress
from qwen_mtp.states import Phase

PAST = [{Phase.SPAWN: 10.0, Phase.WEIGHTS: 40.0, Phase.CUDA_GRAPHS: 20.0}]
seconds = st.floats(0, 1e4)
launch = st.dictionaries(st.sampled_from(Phase), seconds)


def test_without_history_nothing_is_invented() -> None:
    assert remaining([], {}, Phase.WEIGHTS, Progress(7, 15)) is None


def test_at_the_start_all_phases_are_ahead() -> None:
    assert remaining(PAST, {Phase.SPAWN: 4.0}, Phase.SPAWN, Progress()) == 66.0


def test_phases_that_were_left_count_no_more_even_if_they_were_quick() -> None:
    assert remaining(PAST, {Phase.SPAWN: 2.0, Phase.WEIGHTS: 10.0}, Phase.WEIGHTS, Progress()) == 50.0


def test_a_slow_phase_is_judged_by_its_own_steps() -> None:
    spent = {Phase.SPAWN: 10.0, Phase.WEIGHTS: 60.0}
    assert remaining(PAST, spent, Phase.WEIGHTS, Progress(5, 15)) == 60 / 5 * 10 + 20


def test_few_steps_are_no_evidence_yet() -> None:
    spent = {Phase.SPAWN: 10.0, Phase.WEIGHTS: 30.0}
    assert remaining(PAST, spent, Phase.WEIGHTS, Progress(1, 15)) == 10.0 + 20.0


def test_the_median_of_earlier_launches_counts() -> None:
    past = [{Phase.SPAWN: n} for n in (8.0, 9.0, 300.0)]
    assert remaining(past, {}, Phase.SPAWN, Progress()) == 9.0


@given(st.lists(launch, max_size=4), launch, st.sampled_from(Phase), st.integers(0, 30), st.integers(0, 30))
def test_it_is_never_negative(past, spent, phase, done, total) -> None:  # type: ignore[no-untyped-def]
    left = remaining(past, spent, phase, Progress(min(done, total), total))
    assert left is None or left >= 0
