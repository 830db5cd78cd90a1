from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from qwen_mtp import journal_catalog, manual
from qwen_mtp.bus_values import properties
from qwen_mtp.failures import load_catalogue
from qwen_mtp.messages import EVENTS
from qwen_mtp.settings import PHASE_TIMEOUTS, SETTINGS
from qwen_mtp.snapshot import Snapshot
from qwen_mtp.states import FailureClass

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/man").glob("*.rst"))


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_pages_render_without_a_warning(page: Path, tmp_path: Path) -> None:
    source = tmp_path / page.name
    source.write_text(manual.render(page.read_text()), encoding="utf-8")
    done = subprocess.run(["rst2man", "--strict", str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "@" not in "".join(line for line in source.read_text().splitlines() if line.startswith("@"))


def test_everything_that_is_data_is_in_the_manual() -> None:
    text = {page.name: manual.render(page.read_text()) for page in PAGES}
    for setting in SETTINGS:
        assert f"\n{setting.name}\n" in text["qwen-mtp.toml.5.rst"]
    for phase in PHASE_TIMEOUTS:
        assert f"\n{phase.value}\n" in text["qwen-mtp.toml.5.rst"]
        assert phase.value in text["qwen-mtpd.8.rst"]
    for failure_class in FailureClass:
        assert f"\n{failure_class.value} (" in text["qwen-mtp.1.rst"]


def test_the_introspection_data_and_what_is_published_agree() -> None:
    described = {signature.split()[0] for kind, signature, _ in manual.members() if kind == "property"}
    assert described == set(properties(Snapshot()))
    assert all(text for _, _, text in manual.members()), "a member without description"


def test_the_d_bus_page_is_up_to_date() -> None:
    assert (ROOT / "docs/dbus.md").read_text(encoding="utf-8") == manual.dbus_markdown()


def test_the_journal_catalog_has_every_event_and_class() -> None:
    text = "\n".join(journal_catalog.render(load_catalogue()))
    assert text.count("\nSubject: ") == len(EVENTS) + len(FailureClass)
    for kind in EVENTS:
        assert f"-- {kind.message_id}\nSubject: {kind.subject}\n" in text
