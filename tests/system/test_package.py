from __future__ import annotations

import re

from .box import Box, package
from .service import Service, exists


def test_installing_starts_and_enables_nothing(installed: Box) -> None:
    assert installed.run("systemctl", "is-enabled", "qwen-mtp", check=False).strip() == "disabled"
    assert installed.run("systemctl", "is-active", "qwen-mtp", check=False).strip() == "inactive"
    assert "qwen-mtp" in installed.run("id", "qwen-mtp")


def test_the_unit_is_valid_and_hardened(installed: Box) -> None:
    status, out, err = installed.result("systemd-analyze", "verify", "qwen-mtp.service")
    assert (status, out) == (0, "")
    assert [line for line in err.splitlines() if "qwen-mtp" in line] == []
    security = installed.run("systemd-analyze", "security", "qwen-mtp.service", "--no-pager")
    level = re.search(r"exposure level for qwen-mtp.service: ([\d.]+)", security)
    assert level is not None
    assert float(level[1]) < 2.5, security


def test_manual_pages_and_catalog_are_there(installed: Box) -> None:
    for page in ("qwen-mtp.1", "qwen-mtpd.8", "qwen-mtp.toml.5", "org.qwenmtp.Supervisor1.5"):
        name, section = page.rsplit(".", 1)
        assert exists(installed, f"/usr/share/man/man{section}/{page}.gz"), name
    assert "SGLang failed: missing-library" in installed.run("journalctl", "--list-catalog")


def test_a_start_without_a_model_says_so_and_is_not_retried(service: Service) -> None:
    status, _ = service.start()
    assert status != 0
    shown = service.show("Result", "ExecMainStatus", "NRestarts", "ActiveState", "StatusText")
    assert (shown["Result"], shown["ExecMainStatus"]) == ("exit-code", "78")
    assert (shown["ActiveState"], shown["NRestarts"]) == ("failed", "0")
    assert shown["StatusText"].startswith("/etc/qwen-mtp/qwen-mtp.toml: [args] model-path: no model is named")
    assert "no model is named" in service.status()


def next_version(box: Box) -> str:
    """Make a package of a higher version, with another conffile, out of the one that was built."""
    box.run("dpkg-deb", "-R", f"/root/{package().name}", "/root/next")
    for file, old, new in (
        ("DEBIAN/control", "Version: 0.1.0", "Version: 0.1.0+next"),
        ("etc/qwen-mtp/qwen-mtp.toml", "# Configuration of qwen-mtp", "# New configuration of qwen-mtp"),
    ):
        path = box.root / "root/next" / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    box.run("dpkg-deb", "--root-owner-group", "-b", "/root/next", "/root/next.deb")
    return "/root/next.deb"


def test_an_upgrade_keeps_the_running_model_and_the_edited_conffile(service: Service) -> None:
    box = service.box
    service.configure()
    assert service.start()[0] == 0
    before = service.show("MainPID")["MainPID"]
    conffile = box.root / "etc/qwen-mtp/qwen-mtp.toml"
    original = conffile.read_text()
    try:
        conffile.write_text(original + "\n# edited by the administrator\n")
        keep = ("-o", "Dpkg::Options::=--force-confold")
        box.run("apt-get", "install", "-y", "--no-install-recommends", *keep, next_version(box))
        assert box.run("dpkg-query", "-W", "-f", "${Version}", "qwen-mtp") == "0.1.0+next"
        assert conffile.read_text().endswith("# edited by the administrator\n")
        assert service.show("MainPID", "ActiveState") == {"MainPID": before, "ActiveState": "active"}
        assert service.get("State") == ['s "ready"']
        service.box.run("systemctl", "restart", "qwen-mtp")
        assert service.show("MainPID")["MainPID"] != before
    finally:
        conffile.write_text(original)
        box.run("apt-get", "install", "-y", "--allow-downgrades", "--no-install-recommends", f"./{package().name}")
