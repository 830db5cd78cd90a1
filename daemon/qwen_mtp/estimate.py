"""The time left until ready, from earlier launches of the same command. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from qwen_mtp.snapshot import Progress
from qwen_mtp.states import Phase


def remaining(
    launches: Sequence[Mapping[Phase, float]],
    spent: Mapping[Phase, float],
    phase: Phase,
    progress: Progress,
) -> float | None:
    """Estimate the seconds until ready.

    Each phase that this launch has not left yet is expected to take the median of the earlier ones. In
    the present phase the larger of two views of what is left counts: expected minus spent, and, once a
    quarter of its steps is done, what the steps so far suggest.

    Args:
        launches: seconds per phase of earlier launches.
        spent: seconds per phase of this one, the present phase included.
        phase: the present phase.
        progress: steps in it.

    Returns:
        Seconds, or None without any earlier launch: an estimate is never invented.
    """
    if not launches or phase is Phase.READY:
        return None
    total = 0.0
    for each in Phase:
        times = [launch[each] for launch in launches if each in launch]
        if not times or (each in spent and each is not phase):
            continue
        left = max(median(times) - spent.get(each, 0.0), 0.0)
        if each is phase and progress.total > 0 and progress.done * 4 >= progress.total:
            per_step = spent.get(each, 0.0) / progress.done
            left = max(left if progress.done < progress.total else 0.0, per_step * (progress.total - progress.done))
        total += left
    return total
