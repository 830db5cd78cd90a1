"""The supervisor's own journal entries: a fixed MESSAGE_ID per kind of event, and its catalog text.

The texts become /usr/lib/systemd/catalog/qwen-mtp.catalog, which `journalctl -x` shows below an entry.
Failures are not here: each class has its MESSAGE_ID in the failure catalogue.
"""

from __future__ import annotations

from typing import NamedTuple


class EventKind(NamedTuple):
    """One kind of journal entry.

    Attributes:
        name: value of QWEN_MTP_EVENT=.
        message_id: value of MESSAGE_ID=, 128 bits in hex; never changed once released.
        subject: one line for `journalctl -x`; `@FIELD@` is filled in from the entry.
        text: paragraphs for `journalctl -x`.
    """

    name: str
    message_id: str
    subject: str
    text: str


EVENTS: tuple[EventKind, ...] = (
    EventKind(
        "supervisor-started",
        "1b810ebf44ef4929871633b1e5d38aa2",
        "The supervisor has started",
        """
        qwen-mtpd runs and is about to check its configuration and to start SGLang.
        """,
    ),
    EventKind(
        "configuration-refused",
        "e2abde4969d7472da13d591545ed4ac8",
        "The configuration was refused",
        """
        Nothing was started. The message names the file, the line and the key. The service stays down
        until the configuration is mended: restarting it cannot help.

        See qwen-mtp.toml(5); "qwen-mtp config" shows the configuration as it is read.
        """,
    ),
    EventKind(
        "launch-started",
        "5a6decd3f8304a6ba9a4ecd95b35a406",
        "SGLang has been started",
        """
        SGLang runs as process @QWEN_MTP_PID@. Its own lines follow under the identifier "sglang".
        """,
    ),
    EventKind(
        "phase-entered",
        "526f2bc55e814485838bae4058595798",
        "SGLang reached start-up phase @QWEN_MTP_PHASE@",
        """
        The phases are explained in org.qwenmtp.Supervisor1(5). systemctl status shows the present one.
        """,
    ),
    EventKind(
        "ready",
        "f5f9f6a2ed504613bc42eba5c9901151",
        "SGLang is ready to serve",
        """
        SGLang said so in its log, and its health endpoint answered from a process of this unit.
        """,
    ),
    EventKind(
        "unresponsive",
        "021026af5e434ada8a2b126845c5e76b",
        "SGLang no longer answers",
        """
        SGLang's health endpoint failed several times in a row. A long compilation or prefill can do that;
        it counts as ready again after the next good answer.
        """,
    ),
    EventKind(
        "responsive",
        "f14247a07f374984962fcf01872049c1",
        "SGLang answers again",
        """
        SGLang's health endpoint answers again.
        """,
    ),
    EventKind(
        "phase-stalled",
        "dbcccf574f6445f79442c06c9c12c39d",
        "SGLang made no progress in phase @QWEN_MTP_PHASE@",
        """
        Nothing moved for the time that [supervisor.phase-timeout] allows in this phase, so SGLang is
        ended and the failure counts as "hang". If the phase was only slow, raise its limit in qwen-
        mtp.toml(5).
        """,
    ),
    EventKind(
        "restart-scheduled",
        "f418cd3b8c27419ba985934bdf943588",
        "SGLang will be started again",
        """
        SGLang ended, and its failure is of a kind that can heal. The next start follows at the time
        named.
        """,
    ),
    EventKind(
        "restart-requested",
        "b3614f42b8b14327902bf16a5e364321",
        "A restart of SGLang was requested",
        """
        The method Restart of org.qwenmtp.Supervisor1 was called. SGLang finishes its requests, ends and
        is started again; this does not count against the restart budget.
        """,
    ),
    EventKind(
        "gave-up",
        "0417daa5cdce4e4eaf63f527908db232",
        "SGLang stays down",
        """
        The failure cannot heal by itself, or the restart budget is used up. Mend what the diagnosis
        names, then run "systemctl restart qwen-mtp".
        """,
    ),
    EventKind(
        "stopping",
        "93c8278edbdf464bae4cd782a408d999",
        "SGLang is being stopped",
        """
        SGLang got SIGTERM and may finish its requests; after stop-timeout what is left of it is killed.
        """,
    ),
    EventKind(
        "stopped",
        "ed5f389b43b64e16b863ad45b510bd9e",
        "SGLang has ended as asked",
        """
        No process of SGLang is left.
        """,
    ),
    EventKind(
        "leftovers-killed",
        "5e9e150a1397406b87c3b6b8ff98c4fe",
        "Processes that SGLang left behind were killed",
        """
        They lived in SGLang's control group after its main process had ended.
        """,
    ),
    EventKind(
        "leftovers-alive",
        "8b3fe6fe453d478e8566549c245c8111",
        "Processes of SGLang could not be killed",
        """
        They are in uninterruptible sleep, most often in a driver. No second server is started while they
        hold a GPU. If they do not go away, the machine must be restarted.
        """,
    ),
    EventKind(
        "journal-events-dropped",
        "5ac8d7fae2fe47b08ff50cf2877139e1",
        "Events of the supervisor were lost",
        """
        journald did not take them for too long. SGLang's own lines wait in its pipe and are not affected.
        """,
    ),
    EventKind(
        "bus-lost",
        "7e3bca03ae344057acb6cb8885b1148c",
        "The connection to the system bus was lost",
        """
        The service goes on, and connects again when the bus is back.
        """,
    ),
    EventKind(
        "bus-acquired",
        "2c252c9221a74e39858a58dfe22f8e91",
        "The supervisor is on the system bus",
        """
        org.qwenmtp.Supervisor1 can be read with busctl.
        """,
    ),
    EventKind(
        "state-not-saved",
        "8de34d43c7174f259c156725bce38c34",
        "A state file could not be written",
        """
        The service goes on without it: estimates of the time to ready will be missing or old.
        """,
    ),
)

BY_NAME = {kind.name: kind for kind in EVENTS}
