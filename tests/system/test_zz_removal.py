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
    assert [line for line in left.splitlines() if "/var/log/" not in line and "/run/" not in line] == []
    assert "SGLang failed" not in installed.run("journalctl", "--list-catalog")
    # And it can be installed again.
    installed.install(package())
    assert installed.run("systemctl", "is-active", "qwen-mtp", check=False).strip() == "inactive"
