"""SGLang's environment for the tests: a virtual environment with SGLang from the package registry, and a tiny model.

Made once and kept below /var/tmp/qwen-mtp (or $QWEN_MTP_CACHE). `python3 -m tests.real.environment` makes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.5.23"
UV = "uv==0.13.9"
DOWNLOAD_GB = 5
INSTALLED_GB = 10
DISK_GB = 12
"""What has to be free, with some room for what is being unpacked."""

_HERE = Path(__file__).resolve().parent
_LOCK = _HERE / "requirements.txt"
_MODELS = _HERE / "models.py"
_TRIES = 3


class EnvironmentUnavailableError(RuntimeError):
    """SGLang's environment cannot be made here; the text says what to do."""


@dataclass(frozen=True)
class Environment:
    """What a launch of the real SGLang needs.

    Attributes:
        python: interpreter of SGLang's virtual environment.
        model: directory of the tiny hybrid model.
        shim: directory for PYTHONPATH that lets SGLang run without a GPU.
    """

    python: Path
    model: Path
    shim: Path = _HERE / "shim"

    @property
    def site_packages(self) -> Path:
        """Where SGLang's packages are."""
        (found,) = self.python.parent.parent.glob("lib/python3.*/site-packages")
        return found


def cache() -> Path:
    """Directory of all that is fetched or made once."""
    return Path(os.environ.get("QWEN_MTP_CACHE", "/var/tmp/qwen-mtp"))


def _base() -> Path:
    return cache() / f"sglang-{VERSION}"


def _digest(*sources: Path) -> str:
    """Tell of what something was made: of these files and this interpreter."""
    made_of = sys.version + "".join(source.read_text(encoding="utf-8") for source in sources)
    return hashlib.sha256(made_of.encode()).hexdigest()


def _current(directory: Path, *sources: Path) -> bool:
    stamp = directory / "made-of"
    return stamp.is_file() and stamp.read_text() == _digest(*sources)


def installed() -> bool:
    """Whether the packages are here already, so that nothing would be fetched."""
    return _current(_base() / "venv", _LOCK)


def ensure(say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)) -> Environment:
    """Make what is missing.

    Args:
        say: takes sentences about steps that last.

    Raises:
        EnvironmentUnavailableError: no room, or the packages cannot be had.
    """
    base = _base()
    base.mkdir(parents=True, exist_ok=True)
    made = Environment(base / "venv/bin/python", base / "tiny-qwen3.5")
    with open(base / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed():
            _check_room(base)
            say(
                f"installing SGLang {VERSION} into {base / 'venv'}: "
                f"about {DOWNLOAD_GB} GB are fetched and take {INSTALLED_GB} GB, which lasts minutes"
            )
            _install(base, say)
        if not _current(made.model, _MODELS, _LOCK):
            say(f"making a tiny model in {made.model}")
            shutil.rmtree(made.model, ignore_errors=True)
            _run(made.python, "-I", _MODELS, made.model)
            (made.model / "made-of").write_text(_digest(_MODELS, _LOCK))
    return made


def _check_room(base: Path) -> None:
    free = shutil.disk_usage(base).free / 2**30
    if free < DISK_GB:
        raise EnvironmentUnavailableError(
            f"{base} has {free:.0f} GB free and SGLang needs {DISK_GB}; make room, or set QWEN_MTP_CACHE to another disk"
        )


def _install(base: Path, say: Callable[[str], None]) -> None:
    venv, tool, downloads = base / "venv", base / "uv", base / "downloads"
    shutil.rmtree(venv, ignore_errors=True)
    if not (tool / "bin/uv").exists():
        _run(sys.executable, "-m", "venv", "--clear", tool)
        _run(tool / "bin/pip", "install", "--quiet", "--disable-pip-version-check", UV)
    uv = tool / "bin/uv"
    _run(uv, "venv", "--quiet", "--python", sys.executable, venv)
    # The list is complete, so nothing is resolved; and nothing is compiled, for which a compiler might be missing.
    command: list[Path | str] = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--no-config",
        "--no-deps",
        "--no-build",
        "--python",
        venv / "bin/python",
    ]
    command += ["--cache-dir", downloads, "--link-mode", "hardlink", "--requirement", _LOCK]
    for attempt in range(1, _TRIES + 1):
        try:
            _run(*command)
            break
        except EnvironmentUnavailableError as error:
            if attempt == _TRIES:
                raise
            say(f"{error}; trying again with what has been fetched")
    # Linked into the environment: what is there takes no room twice, the rest is of no further use.
    shutil.rmtree(downloads, ignore_errors=True)
    (venv / "made-of").write_text(_digest(_LOCK))


def _run(*words: Path | str) -> None:
    command = [*map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise EnvironmentUnavailableError(f"{' '.join(command)} failed:\n{last}")


def main() -> int:
    """Make the environment and print its interpreter."""
    try:
        print(ensure().python)
    except EnvironmentUnavailableError as error:
        print(f"SGLang cannot be installed here: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
