from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qwen_mtp.lines import MASK, MAX_LINE, Forwarder, LineCutter, Masker

RECORDINGS = Path(__file__).parent.parent / "recordings"


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def forward(parts: list[bytes], secrets: tuple[bytes, ...] = (), step: float = 0.0) -> bytes:
    masker, forwarder = Masker(secrets), Forwarder()
    out = b"".join(forwarder.feed(masker.feed(part), step * n) for n, part in enumerate(parts))
    end = step * len(parts)
    return out + forwarder.feed(masker.flush(), end) + forwarder.flush(end)


def stream(*parts: bytes) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(parts)).map(b"".join)


plain = stream(b"a", b"\n", b"\x00", b"\xff\xfe", b"\x1b[31m", b"<3>x", "ü".encode())
noisy = stream(b"a", b"bc", b"\n", b"\r", b"\r\n", b"\x00", b"\xff", b" 7%")
secretive = stream(b"secret-key", b"secret", b"-key", b"sec", b"x", b"\n")
cuts = st.lists(st.integers(0, 500), max_size=8)


@given(plain, cuts)
def test_text_without_carriage_return_passes_unaltered(data: bytes, at: list[int]) -> None:
    end = b"" if not data or data.endswith(b"\n") else b"\n"
    assert forward(pieces(data, at)) == data + end


@given(plain)
def test_partial_lines_pass_at_once(data: bytes) -> None:
    assert Forwarder().feed(data, 0.0) == data


@given(noisy, cuts)
def test_no_carriage_return_is_left_and_no_text_is_invented(data: bytes, at: list[int]) -> None:
    out = forward(pieces(data, at), step=2.0)
    assert b"\r" not in out
    # Nothing is thinned when every drawing is due: all other bytes are there, in order.
    assert out.replace(b"\n", b"") == data.replace(b"\r", b"").replace(b"\n", b"")


@given(st.integers(1, 40))
def test_a_bar_is_thinned_with_first_and_last_kept(frames: int) -> None:
    bar = b"".join(b"\rshards %d/%d" % (n, frames) for n in range(frames + 1)) + b"\n"
    assert forward([bar + b"next\n"]) == b"shards 0/%d\nshards %d/%d\nnext\n" % (frames, frames, frames)


def test_a_bar_that_moves_slowly_is_kept_whole_and_shown_while_it_is_unfinished() -> None:
    forwarder = Forwarder()
    assert forwarder.feed(b"\r0/3", 0.0) == b"0/3\n"
    assert forwarder.feed(b"\r1/3", 5.0) == b"1/3\n"
    assert forwarder.feed(b"\r2/3", 5.4) == b""
    assert forwarder.feed(b"\r3/3\n", 5.6) == b"3/3\n"


def test_the_last_drawing_is_kept_when_the_process_dies_in_the_middle_of_a_bar() -> None:
    assert forward([b"\r0/3\r1/3\r2/3"]) == b"0/3\n2/3\n"


def test_a_line_end_of_two_bytes_is_a_line_end_also_across_reads() -> None:
    assert forward([b"one\r", b"\ntwo\r\n"]) == b"one\ntwo\n"


def test_a_bar_after_an_unfinished_line_starts_a_line() -> None:
    assert forward([b"text\rbar\n"]) == b"text\nbar\n"


def test_text_in_front_of_a_return_at_the_end_of_a_read_is_not_lost() -> None:
    assert forward([b"text\r", b"bar\n"]) == b"text\nbar\n"


def test_a_huge_line_after_a_return_passes_in_bounded_memory() -> None:
    parts = [b"\r"] + [b"x" * 60_000] * 20 + [b"\nend\n"]
    assert forward(parts) == b"x" * 1_200_000 + b"\nend\n"


@given(secretive, cuts)
def test_a_secret_is_masked_wherever_reads_cut_it(data: bytes, at: list[int]) -> None:
    masker = Masker([b"secret-key"])
    out = b"".join(masker.feed(part) for part in pieces(data, at)) + masker.flush()
    assert b"secret-key" not in out
    assert out == data.replace(b"secret-key", MASK)


def test_nothing_is_held_back_without_secrets_nor_without_the_start_of_one() -> None:
    assert Masker().feed(b"abc") == b"abc"
    masker = Masker([b"abcdef"])
    assert masker.feed(b"xyzabc") == b"xyz"
    assert masker.feed(b"!") == b"abc!"


def test_the_longer_of_two_secrets_is_masked_whole() -> None:
    assert forward([b"k=abcdefgh;abcd\n"], (b"abcd", b"abcdefgh")) == b"k=[masked];[masked]\n"


def cut(parts: list[bytes]) -> list[str]:
    cutter = LineCutter()
    lines = [line for part in parts for line in cutter.feed(part, drained=False)]
    return lines + cutter.flush()


def lines_of(data: bytes) -> list[str]:
    """What the cutter must make of a stream, said in another way."""
    found = []
    for line in data.replace(b"\r\n", b"\n").split(b"\n"):
        text, *drawings = line.split(b"\r")
        found += [text, *(b"\r" + drawing for drawing in drawings if drawing)]
    if not line:
        found.pop()  # behind the last line end there is no line
    return [line.decode("utf-8", "replace") for line in found]


@given(noisy, cuts)
def test_lines_do_not_depend_on_how_reads_cut_them(data: bytes, at: list[int]) -> None:
    assert cut([data]) == lines_of(data)
    assert [line for line in cut(pieces(data, at)) if line] == [line for line in lines_of(data) if line]


@given(plain, cuts)
def test_lines_are_counted_as_line_ends_are(data: bytes, at: list[int]) -> None:
    assert len(cut(pieces(data, at))) == len(lines_of(data))


def test_an_unfinished_drawing_counts_once() -> None:
    cutter = LineCutter()
    assert cutter.feed(b"\r 7% 1/15") == ["", "\r 7% 1/15"]
    assert cutter.feed(b"\r13% 2/15") == ["\r13% 2/15"]
    assert cutter.feed(b"\n") == []
    assert cutter.feed(b"unfinished") == []
    assert cutter.feed(b" line\n") == ["unfinished line"]


def test_a_line_of_ten_megabytes_is_cut_and_the_next_is_whole() -> None:
    cutter = LineCutter()
    lines = [line for _ in range(160) for line in cutter.feed(b"y" * 65_536)]
    lines += cutter.feed(b"tail\nnext\n")
    assert [len(line) for line in lines] == [MAX_LINE, 4]
    assert lines[1] == "next"


CASES = ["0.5.11/90-27b-mtp-success", "0.5.16/02-mtp-success", "0.5.23/model-bad-shape"]


@pytest.mark.parametrize("case", CASES)
def test_recorded_output_keeps_every_line_and_thins_only_bars(case: str) -> None:
    data = (RECORDINGS / case / "log").read_bytes()
    out = forward([data[n : n + 4096] for n in range(0, len(data), 4096)])
    assert b"\r" not in out
    kept = out.split(b"\n")
    ended = [line.rsplit(b"\r", 1)[-1] for line in data.split(b"\n")]
    missing = [line for line in ended if line and line not in kept]
    assert missing == []
    assert len(out) < len(data)
