"""How long earlier launches took, per phase, kept over restarts of the service."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from qwen_mtp.snapshot import Span
from qwen_mtp.states import Phase

KEPT = 10
"""Launches that are kept per fingerprint."""
_FINGERPRINTS = 20

Durations = Mapping[Phase, float]
"""Seconds per phase of one launch; a phase visited twice counts with its sum."""


def fingerprint(argv: Sequence[str]) -> str:
    """Identify launches that can be compared: the same command with the same arguments."""
    return hashlib.sha256("\0".join(argv).encode()).hexdigest()[:16]


def durations(timeline: Sequence[Span]) -> dict[Phase, float]:
    """Sum a launch's finished spans by phase."""
    found: dict[Phase, float] = {}
    for span in timeline:
        if span.end is not None and span.phase is not Phase.READY:
            found[span.phase] = found.get(span.phase, 0.0) + span.end - span.start
    return found


class History:
    """The file of earlier launches, `launches.json` in the state directory.

    A file that cannot be read or written costs estimates, nothing else.

    Args:
        directory: the state directory.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "launches.json"

    def load(self, key: str) -> list[Durations]:
        """Return the kept launches of a fingerprint, oldest first."""
        return [
            {Phase(name): float(seconds) for name, seconds in launch.items()} for launch in self._read().get(key, [])
        ]

    def add(self, key: str, launch: Durations) -> None:
        """Keep a launch that became ready; the file is replaced atomically."""
        kept = self._read()
        launches = kept.pop(key, [])
        launches.append({phase.value: round(seconds, 3) for phase, seconds in launch.items()})
        kept[key] = launches[-KEPT:]
        while len(kept) > _FINGERPRINTS:
            kept.pop(next(iter(kept)))  # the one unused for longest: dicts keep the order of insertion
        new = self._path.with_suffix(".new")
        try:
            with open(new, "w", encoding="ascii") as file:
                json.dump(kept, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
        except OSError as error:
            structlog.get_logger().warning(
                "state-not-saved", message=f"{self._path} cannot be written ({error}); going on without"
            )

    def _read(self) -> dict[str, list[dict[str, float]]]:
        try:
            kept = json.loads(self._path.read_text(encoding="ascii"))
            names = {phase.value for phase in Phase}
            return {
                str(key): [
                    {name: float(seconds) for name, seconds in launch.items() if name in names} for launch in launches
                ]
                for key, launches in kept.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            structlog.get_logger().warning("state-unreadable", message=f"{self._path} is ignored: {error}")
            return {}
