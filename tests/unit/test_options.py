from __future__ import annotations

import pytest

from qwen_mtp.options import SECRETS, name_problem, secret_in, value_problem
from tests.unit.configuring import OPTIONS


@pytest.mark.parametrize("version", OPTIONS)
def test_every_option_of_sglang_can_be_given_but_the_secret_ones(version: str) -> None:
    refused = {name: problem for name in OPTIONS[version] if (problem := name_problem(name))}
    assert set(refused) == set(SECRETS)
    assert all("/etc/credstore/qwen-mtp." in problem for problem in refused.values())


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("api", "api-key"),
        ("admin", "admin-api-key"),
        ("ssl-keyfile-", "ssl-keyfile-password"),
        ("conf", "config"),
        ("log-level-h", "log-level-http"),
        ("por", "port"),
    ],
)
def test_abbreviations_do_not_go_round_the_checks(short: str, full: str) -> None:
    assert name_problem(short) == f"is short for {full}; write the name in full"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("port", [1, 65535, False], [0, 65536, -1, "30000", 30000.0, True, [30000]]),
        ("mem-fraction-static", [0.001, 0.999, False], [0.0, 1.0, 1, 0, -0.5, "0.9", True]),
        ("max-running-requests", [1, 4096], [0, -1, "8", True]),
        ("log-level", ["info", "debug"], ["warning", "INFO", "", True, 20]),
        ("log-level-http", ["warning", "trace"], ["WARNING", "warn", True]),
        ("host", ["::", "gpu1.example"], [True, 0, ["a"]]),
        ("model-path", ["/m", "Qwen/Qwen3.6-27B", "", False], [True, 5, ["/m"], {"a": 1}]),
        (
            "anything",
            [True, False, 1, -1.5, "", "-x", [], ["a", 1, -2, True], {}, {"a": [{"b": [1, "c"]}]}],
            [None, [[1]], [{}], ["-x"], float("inf"), [float("nan")], {"a": float("inf")}, "\0", ["\0"], {"\0": 1}],
        ),
    ],
)
def test_values(name: str, good: list[object], bad: list[object]) -> None:
    assert [value for value in good if value_problem(name, value)] == []
    assert [value for value in bad if not value_problem(name, value)] == []


@pytest.mark.parametrize(
    ("word", "secret"),
    [
        ("--api-key", "api-key"),
        ("--api-key=abc", "api-key"),
        ("--api_key=abc", "api-key"),
        ("--admin-a", "admin-api-key"),
        ("--ssl-keyfile=/k", ""),
        ("--", ""),
        ("-m", ""),
        ("api-key", ""),
        ("--model-path", ""),
    ],
)
def test_secrets_in_a_command_are_found(word: str, secret: str) -> None:
    assert secret_in(word) == secret
