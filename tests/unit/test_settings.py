from __future__ import annotations

from dataclasses import fields

from qwen_mtp.settings import PHASE_TIMEOUTS, SETTINGS, SupervisorSettings, make
from qwen_mtp.states import Phase


def test_the_table_and_the_values_have_the_same_keys() -> None:
    names = [setting.name.replace("-", "_") for setting in SETTINGS]
    assert sorted([*names, "phase_timeout"]) == sorted(field.name for field in fields(SupervisorSettings))
    assert len(names) == len(set(names))


def test_every_default_is_allowed() -> None:
    for setting in SETTINGS:
        if isinstance(setting.default, str):
            assert setting.default in setting.choices
        elif not isinstance(setting.default, bool):
            assert setting.low <= setting.default <= setting.high, setting.name
        assert setting.help.endswith(".")


def test_every_phase_of_a_start_has_a_limit_above_a_minute() -> None:
    assert list(PHASE_TIMEOUTS) == [phase for phase in Phase if phase is not Phase.READY]
    assert min(PHASE_TIMEOUTS.values()) >= 60


def test_what_is_not_set_takes_its_default() -> None:
    made = make({"stop-timeout": 5.0}, {Phase.WEIGHTS: 7.0})
    assert made.stop_timeout == 5.0
    assert made.health_failures == 3
    assert made.phase_timeout == {**PHASE_TIMEOUTS, Phase.WEIGHTS: 7.0}
