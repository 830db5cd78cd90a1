from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_mtp.tomlfile import TomlError, lines_of_items, lines_of_keys, read


def test_lines_are_found_behind_strings_and_brackets_of_several_lines() -> None:
    text = '''a.b = 1
"q.r"."s t" = """
x = 1
""""
[args] # comment [x]
'list' = [
  "]", # ]
  2,
]
last = {x = 1,
 y = 2}
[[many]]
[ a . "c" ]
k=1'''
    assert lines_of_keys(text) == {
        ("a",): 1,
        ("a", "b"): 1,
        ("q.r",): 2,
        ("q.r", "s t"): 2,
        ("args",): 5,
        ("args", "list"): 6,
        ("args", "last"): 10,
        ("many",): 12,
        ("a", "c"): 13,
        ("a", "c", "k"): 14,
    }


values = st.one_of(st.booleans(), st.integers(-(2**31), 2**31), st.text("a ü#\"'[]{}=\n\t\\,.模"))


@given(st.dictionaries(st.from_regex(r"x[a-z0-9-]{0,12}", fullmatch=True), values, max_size=8))
def test_lines_of_any_table_are_right(table: dict[str, object]) -> None:
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    found = lines_of_keys("\n".join(["# top", "[args]", *lines]))
    assert found == {("args",): 2, **{("args", name): n + 3 for n, name in enumerate(table)}}
