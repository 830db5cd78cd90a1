from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_mtp.tomlfile import KeyPath, TomlError, lines_of_items, lines_of_keys, read


def read_text(text: str) -> tuple[dict[str, object], dict[KeyPath, int]]:
    with TemporaryDirectory() as made:
        file = Path(made) / "x.toml"
        file.write_bytes(text.encode())
        return read(file)


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


def test_lines_of_items_are_those_of_their_headers() -> None:
    text = '[[rule]]\nx = """\n[[rule]]\n"""\n\n[[ rule ]] # again\n[[rules]]\n'
    assert lines_of_items(text, "rule") == [1, 6]


# Documents made of known keys on known lines, spelled in every way that TOML has.

words = st.text("a bü#'[]{}=\t,.模", max_size=8)
lines = st.lists(words, max_size=3).map("\n".join)
spelled = st.one_of(
    words.map(json.dumps),
    words.map(lambda text: "'" + text.replace("'", '"') + "'"),
    lines.map(lambda text: f'"""{text}\\" \\"""\n[args]\nport = 1 # """'),
    lines.map(lambda text: "'''\n" + text.replace("'", '"') + "\n[x]\n''x = ''''"),
    st.lists(words, max_size=3).map(
        lambda items: "[ # [\n" + "".join(f"  {json.dumps(i)}, # ]'\n" for i in items) + "]"
    ),
    words.map(lambda text: "{ port = [\n1 ], " + json.dumps("k" + text) + " = 'x = {' }"),
    st.sampled_from(["true", "-1.5e3", "0x1F", "2026-01-01T00:00:00Z", "[]", "{}", "inf"]),
)
noise = st.lists(st.sampled_from(["", "# port = 1", "  # [args]", "\t", "# '''", '# """ ['])).map("\n".join)


def _key(name: str, style: int) -> str:
    return [name, f'"{name}"', f"'{name}'", f'"\\u00{ord(name[0]):02x}{name[1:]}"'][style]


@given(st.data(), st.sampled_from(["\n", "\r\n"]))
def test_lines_of_any_document_are_right(data: st.DataObject, end: str) -> None:
    text = ""
    expected: dict[KeyPath, int] = {}

    def add(key: KeyPath, statement: str) -> None:
        nonlocal text
        text += data.draw(noise) + "\n" + data.draw(st.sampled_from(["", "  "]))
        for depth in range(1, len(key) + 1):
            if key[:depth] not in expected:
                expected[key[:depth]] = text.count("\n") + 1
        text += statement + data.draw(st.sampled_from(["\n", " # x = [\n"]))

    style = st.integers(0, 3)
    for number in range(data.draw(st.integers(0, 3))):
        table = f"t{number}"
        text += "\n"
        expected[(table,)] = text.count("\n") + 1
        text += f"[ {_key(table, data.draw(style))} ]\n"
        for index in range(data.draw(st.integers(0, 3))):
            dotted = (f"d{index}", "x") if data.draw(st.booleans()) else (f"k{index}",)
            name = " . ".join(_key(part, data.draw(style)) for part in dotted)
            add((table, *dotted), f"{name} = {data.draw(spelled)}")
    _, found = read_text(text.replace("\n", end))
    assert found == expected


def _exists(tables: object, key: KeyPath) -> bool:
    if isinstance(tables, list):
        return any(_exists(item, key) for item in tables)
    if not key:
        return True
    return isinstance(tables, dict) and key[0] in tables and _exists(tables[key[0]], key[1:])


@given(
    st.lists(
        st.sampled_from(["a", "b.c", '"d"', "'", "[", "]", "{", "}", "=", "\n", "1", ",", "'''", '"""', "#", "\\", " "])
    )
)
def test_no_key_is_found_that_is_not_there(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        tables, found = read_text(text)
    except TomlError:
        return
    assert [key for key in found if not _exists(tables, key)] == []
    assert {key[0] for key in found} == set(tables)


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"x = 1\n\xff", 2, "is not UTF-8 text"),
        (b"x = \n", 1, "no valid TOML: Invalid value (column 5)"),
        (b"\n\nx = [1", 3, "no valid TOML: Unclosed array"),
        (b"x = " + b"1" * 5000, 0, "no valid TOML: a number has too many digits"),
        (b"x = " + b"[" * 9999, 0, "no valid TOML: nested too deeply"),
    ],
)
def test_what_is_no_toml(tmp_path: Path, data: bytes, line: int, message: str) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(TomlError) as caught:
        read(tmp_path / "x")
    assert (caught.value.line, str(caught.value)) == (line, message)


def test_a_byte_order_mark_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfx = 1\n")
    assert read(tmp_path / "x") == ({"x": 1}, {("x",): 1})
