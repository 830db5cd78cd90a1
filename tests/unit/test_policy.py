from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_mtp import settings
from qwen_mtp.diagnosis import Diagnosis, Evidence
from qwen_mtp.policy import Policy
from qwen_mtp.settings import SupervisorSettings
from qwen_mtp.states import FailureClass, Restart


def made(**values: float) -> SupervisorSettings:
    return settings.make({name.replace("_", "-"): value for name, value in values.items()}, {})


def failure(restart: Restart) -> Diagnosis:
    return Diagnosis(FailureClass.CRASH, "r", "s", "c", "r", restart, 1.0, Evidence(0, ""))


def test_what_cannot_heal_is_tried_once() -> None:
    decision = Policy(made()).decide(failure(Restart.NEVER), 0.0, 0.5)
    assert (decision.action, decision.exhausted) == ("give-up", False)


def test_delays_double_up_to_the_cap_and_the_budget_ends_them() -> None:
    policy = Policy(made(backoff_initial=10, backoff_max=50, restart_budget=4))
    decisions = [policy.decide(failure(Restart.BACKOFF), now, 0.5) for now in range(5)]
    assert [round(decision.delay) for decision in decisions] == [10, 20, 40, 50, 0]
    assert decisions[1].reason == "s; trying again in 20 s (attempt 2 of 4)"
    assert [decision.action for decision in decisions] == ["restart"] * 4 + ["give-up"]
    assert decisions[-1].exhausted
    assert "4 restarts did not help" in decisions[-1].reason


def test_slow_and_backoff_share_the_budget() -> None:
    policy = Policy(made(restart_budget=2))
    assert policy.decide(failure(Restart.SLOW), 0.0, 0.5).delay == 60.0
    assert policy.decide(failure(Restart.BACKOFF), 1.0, 0.5).delay == 10.0
    assert policy.decide(failure(Restart.SLOW), 2.0, 0.5).action == "give-up"


def test_restarts_leave_the_budget_with_the_window_if_a_server_was_ready() -> None:
    policy = Policy(made(restart_budget=1, restart_window=100))
    assert policy.decide(failure(Restart.BACKOFF), 0.0, 0.5).action == "restart"
    policy.was_ready(1.0)
    assert policy.decide(failure(Restart.BACKOFF), 99.0, 0.5).action == "give-up"
    assert policy.decide(failure(Restart.BACKOFF), 101.0, 0.5).action == "restart"


def test_launches_longer_than_the_window_that_never_become_ready_end_too() -> None:
    policy = Policy(made(restart_budget=2, restart_window=100))
    actions = [policy.decide(failure(Restart.BACKOFF), now, 0.5).action for now in (0.0, 500.0, 1000.0)]
    assert actions == ["restart", "restart", "give-up"]


def test_a_long_summary_is_cut_in_the_reason() -> None:
    long = dataclasses.replace(failure(Restart.NEVER), summary="x" * 1000)
    assert len(Policy(made()).decide(long, 0.0, 0.5).reason) < 300


def test_a_server_that_was_ready_for_the_window_starts_with_a_clean_slate() -> None:
    policy = Policy(made(restart_budget=1, restart_window=100))
    policy.decide(failure(Restart.BACKOFF), 0.0, 0.5)
    policy.was_ready(99.0)
    assert policy.decide(failure(Restart.BACKOFF), 50.0, 0.5).action == "give-up"
    policy.was_ready(100.0)
    decision = policy.decide(failure(Restart.BACKOFF), 51.0, 0.5)
    assert (decision.action, decision.delay) == ("restart", 5.0)


def test_no_budget_means_no_restart() -> None:
    decision = Policy(made(restart_budget=0)).decide(failure(Restart.BACKOFF), 0.0, 0.5)
    assert decision.action == "give-up"
    assert "restart-budget = 0" in decision.reason


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 8.0), (0.5, 10.0), (1.0, 12.0)])
def test_jitter_spreads_the_delay(chance: float, delay: float) -> None:
    policy = Policy(made(backoff_initial=10, backoff_jitter=0.2))
    assert policy.decide(failure(Restart.BACKOFF), 0.0, chance).delay == pytest.approx(delay)


@given(
    st.lists(st.tuples(st.sampled_from(Restart), st.floats(0, 1e6), st.floats(-1, 2)), max_size=100),
    st.integers(0, 10),
    st.floats(0, 1e5),
    st.floats(0, 1),
    st.floats(1, 1e6),
)
def test_delays_stay_in_bounds_and_attempts_end(steps, budget, cap, jitter, window) -> None:  # type: ignore[no-untyped-def]
    policy = Policy(
        made(restart_budget=budget, backoff_max=cap, slow_max=cap, backoff_jitter=jitter, restart_window=window)
    )
    restarts = 0
    for restart, now, chance in steps:
        decision = policy.decide(failure(restart), now, chance)
        assert 0 <= decision.delay <= cap
        restarts += decision.action == "restart"
    assert restarts <= budget


def oom(wanted: str, failure_class: FailureClass = FailureClass.GPU_OUT_OF_MEMORY) -> Diagnosis:
    summary = f"the GPU's memory is used up: {wanted} more were wanted"
    return Diagnosis(failure_class, "r", summary, "c", "r", Restart.BACKOFF, 1.0, Evidence(0, ""))


def test_the_same_failure_twice_in_a_row_is_not_tried_a_third_time() -> None:
    policy = Policy(made())
    assert policy.decide(oom("2 GiB"), 0.0, 0.5).action == "restart"
    decision = policy.decide(oom("2 GiB"), 1.0, 0.5)
    assert (decision.action, decision.exhausted) == ("give-up", False)
    assert "failed in the same way before" in decision.reason


def test_other_figures_a_ready_server_or_another_class_keep_it_trying() -> None:
    policy = Policy(made())
    policy.decide(oom("2 GiB"), 0.0, 0.5)
    assert policy.decide(oom("3 GiB"), 1.0, 0.5).action == "restart"
    policy.was_ready(5.0)
    assert policy.decide(oom("3 GiB"), 2.0, 0.5).action == "restart"
    policy = Policy(made())
    for now in range(3):
        assert policy.decide(oom("2 GiB", FailureClass.KILLED), float(now), 0.5).action == "restart"


def test_giving_up_on_repetition_can_be_switched_off() -> None:
    policy = Policy(made(repeat_gives_up=False))
    for now in range(5):
        assert policy.decide(oom("2 GiB"), float(now), 0.5).action == "restart"
