from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from qwen_mtp.history import KEPT, History, durations, fingerprint
from qwen_mtp.snapshot import Span
from qwen_mtp.states import Phase, Role


def test_a_phase_visited_twice_counts_with_its_sum_and_an_open_one_not_at_all() -> None:
    spans = [
        Span(Phase.CUDA_GRAPHS, Role.TARGET, 1.0, 3.0),
        Span(Phase.CUDA_GRAPHS, Role.DRAFT, 4.0, 4.5),
        Span(Phase.HTTP, None, 5.0),
    ]
    assert durations(spans) == {Phase.CUDA_GRAPHS: 2.5}


def test_launches_are_kept_per_fingerprint_and_bounded(tmp_path: Path) -> None:
    history = History(tmp_path)
    for n in range(KEPT + 5):
        history.add("a", {Phase.SPAWN: float(n)})
    history.add("b", {Phase.WEIGHTS: 1.5})
    assert [launch[Phase.SPAWN] for launch in History(tmp_path).load("a")] == [float(n) for n in range(5, KEPT + 5)]
    assert History(tmp_path).load("b") == [{Phase.WEIGHTS: 1.5}]
    assert [file.name for file in tmp_path.iterdir()] == ["launches.json"]


def test_old_fingerprints_make_room(tmp_path: Path) -> None:
    history = History(tmp_path)
    for n in range(30):
        history.add(str(n), {Phase.SPAWN: 1.0})
    assert history.load("0") == []
    assert history.load("29") == [{Phase.SPAWN: 1.0}]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 5}', '{"a": [{"spawn": "x"}]}', "\xff", '{"a": [["x"]]}'])
def test_a_damaged_file_is_ignored_and_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "launches.json").write_text(text, encoding="latin-1")
    history = History(tmp_path)
    with capture_logs() as logs:
        assert history.load("a") == []
    assert [entry["event"] for entry in logs] == ["state-unreadable"]
    history.add("a", {Phase.SPAWN: 1.0})
    assert history.load("a") == [{Phase.SPAWN: 1.0}]


def test_phases_of_another_version_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "launches.json").write_text('{"a": [{"spawn": 1, "no-such-phase": 2}]}')
    assert History(tmp_path).load("a") == [{Phase.SPAWN: 1.0}]


def test_a_directory_that_cannot_be_written_costs_nothing_but_a_warning(tmp_path: Path) -> None:
    history = History(tmp_path / "gone")
    with capture_logs() as logs:
        history.add("a", {Phase.SPAWN: 1.0})
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("state-not-saved", "warning")]


def test_fingerprints_tell_arguments_apart() -> None:
    assert fingerprint(["a", "b"]) != fingerprint(["ab"])
    assert fingerprint(["a", "b"]) == fingerprint(("a", "b"))
