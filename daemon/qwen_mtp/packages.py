"""From the name of a shared library to the Debian package that holds it, by Debian's naming rule."""

from __future__ import annotations

import re

_SONAME = re.compile(r"(?P<name>lib[\w.+-]+?)\.so(?:\.(?P<version>\d+)(?:\.\d+)*)?")

_EXCEPTIONS = {
    "libGL.so.1": "libgl1",
    "libEGL.so.1": "libegl1",
    "libpython3": "python3",
    "libstdc++.so.6": "libstdc++6",
    "libgomp.so.1": "libgomp1",
    "libsndfile.so": "libsndfile1",
    "libibverbs.so.1": "libibverbs1",
    "libmpi.so.40": "libopenmpi3",
    "libtbb.so.12": "libtbb12",
}


def debian_package(library: str) -> str:
    """Name the package of a library.

    Debian names a library package after the soname, the version appended, behind a dash if the name ends in
    a digit (Debian Policy 8.1): libavutil.so.58 is in libavutil58, libfoo2.so.1 in libfoo2-1.

    Args:
        library: file name or path, such as `"libavutil.so.58"`.

    Returns:
        The package's name; a guess for a name without version.
    """
    library = library.rpartition("/")[2]
    if library in _EXCEPTIONS:
        return _EXCEPTIONS[library]
    found = _SONAME.fullmatch(library)
    if found is None:
        return library
    name = found["name"].lower().replace("_", "-")
    version = found["version"] or ""
    return f"{name}-{version}" if version and name[-1].isdigit() else f"{name}{version}"
