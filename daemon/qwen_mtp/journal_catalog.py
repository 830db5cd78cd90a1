"""Renders the journal catalog, from the same tables that the daemon logs by.

`python3 -m qwen_mtp.journal_catalog` prints /usr/lib/systemd/catalog/qwen-mtp.catalog at build time. The
format is systemd's (systemd.io/CATALOG).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import cleandoc

from qwen_mtp.failures import Catalogue, load_catalogue
from qwen_mtp.messages import EVENTS

_SUPPORT = "man:qwen-mtpd(8)"
_FAILURE = """\
@QWEN_MTP_SUMMARY@

{sentence}

Cause: @QWEN_MTP_CAUSE@
Remedy: @QWEN_MTP_REMEDY@

Evidence: @QWEN_MTP_EVIDENCE@
How it ended: @QWEN_MTP_OUTCOME@
What follows: {restart}"""
_RESTART = {
    "never": "the service stays down until someone acts, because a retry cannot help.",
    "slow": "SGLang is started again after a long delay, because the surroundings may heal.",
    "backoff": "SGLang is started again with growing delays, within the restart budget.",
}


def _entry(message_id: str, subject: str, text: str) -> str:
    head = f"-- {message_id}\nSubject: {subject}\nDefined-By: qwen-mtp\nSupport: {_SUPPORT}\n"
    return f"{head}\n{cleandoc(text)}\n"


def render(catalogue: Catalogue) -> Iterator[str]:
    """Yield one catalog entry per kind of event and per failure class."""
    for kind in EVENTS:
        yield _entry(kind.message_id, kind.subject, kind.text)
    for failure in catalogue.classes:
        text = _FAILURE.format(sentence=failure.sentence, restart=_RESTART[failure.restart.value])
        yield _entry(failure.message_id, f"SGLang failed: {failure.failure_class.value}", text)


if __name__ == "__main__":
    sys.stdout.write("\n".join(render(load_catalogue())))
