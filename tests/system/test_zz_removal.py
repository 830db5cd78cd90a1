"""Last, because it takes the package away: pytest runs the files in the order of their names."""

from __future__ import annotations

from .box import Box, package
from .service import Service, exists


def test_removal_stops_the_service_and_purge_leaves_nothing(installed: Box) -> None:
    service = Service(installed)
    service.reset()
    service.configure()
    assert service.start()[0] == 0
    installed.run("apt-get", "remove", "-y", "qwen-mtp")
    assert service.processes() == []
    assert exists(installed, "/etc/qwen-mtp/qwen-mtp.toml")
    installed.run("apt-get", "purge", "-y", "qwen-mtp")
    left = installed.run(
        "sh", "-c", "find / -xdev -iname '*qwen*mtp*' -not -path '/root/*' -not -path '/proc/*' 2>/dev/null"
    )
    others = (
        "/var/log/",
        "/run/",
        "/var/cache/man/",
        "/var/lib/systemd/",
    )  # apt's log, man-db's cache, systemd's stamps
    assert [line for line in left.splitlines() if not any(place in line for place in others)] == []
    # Debian 13's systemd has this directory itself.
    assert exists(installed, "/etc/credstore") == exists(installed, "/usr/lib/tmpfiles.d/credstore.conf")
    assert "SGLang failed" not in installed.run("journalctl", "--list-catalog")
    # And it can be installed again.
    installed.install(package())
    assert installed.run("systemctl", "is-active", "qwen-mtp", check=False).strip() == "inactive"
