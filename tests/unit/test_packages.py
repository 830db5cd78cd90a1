from __future__ import annotations

import pytest

from qwen_mtp.packages import debian_package


@pytest.mark.parametrize(
    ("library", "package"),
    [
        ("libavutil.so.58", "libavutil58"),
        ("/usr/lib/x86_64-linux-gnu/libnuma.so.1", "libnuma1"),
        ("libGL.so.1", "libgl1"),
        ("libsndfile.so.1", "libsndfile1"),
        ("libsndfile.so", "libsndfile1"),
        ("libfoo2.so.1", "libfoo2-1"),
        ("libfoo_bar.so.3.2.1", "libfoo-bar3"),
        ("libstdc++.so.6", "libstdc++6"),
        ("libvpx.so", "libvpx"),
        ("_C.abi3.so", "_C.abi3.so"),
    ],
)
def test_debians_naming_rule(library: str, package: str) -> None:
    assert debian_package(library) == package
