"""What apt says, and what packages unpack to."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.image.debian import Package, parse_uris, read_package
from deploy.image.errors import ImageBuildError
from deploy.image.tree import File

SAID = "".join(
    f"'http://mirror.example/pool/{line}\n"
    for line in (
        "z.deb' zlib1g_1%3a1.2.13+dfsg-1_amd64.deb 86684 MD5Sum:ec42",
        "c.deb' ca-certificates_20250419~deb12u2_all.deb 160948 ",
        "s.deb' libstdc++6_12.2.0-14_amd64.deb 613092 SHA256:ab12",
    )
)


def test_packages_are_read_from_what_apt_would_fetch() -> None:
    assert parse_uris(SAID) == [
        Package("ca-certificates", "20250419~deb12u2", "ca-certificates_20250419~deb12u2_all.deb"),
        Package("libstdc++6", "12.2.0-14", "libstdc++6_12.2.0-14_amd64.deb"),
        Package("zlib1g", "1:1.2.13+dfsg-1", "zlib1g_1%3a1.2.13+dfsg-1_amd64.deb"),
    ]


def test_package_lists_that_know_nothing_are_to_be_refreshed() -> None:
    with pytest.raises(ImageBuildError, match=r"lists no packages: refresh .* apt-get update"):
        parse_uris("")


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs Debian's dpkg-deb")
def test_a_package_unpacks_as_on_an_installed_system_and_without_dangerous_modes(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    (source / "DEBIAN").mkdir(parents=True)
    (source / "DEBIAN/control").write_text(
        "Package: demo\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.com>\n"
        "Description: x\n"
    )
    for directory in ("bin", "lib/x86_64-linux-gnu", "usr/bin"):
        (source / directory).mkdir(parents=True)
    (source / "bin/su").write_text("x")
    (source / "bin/su").chmod(0o4755)
    (source / "lib/x86_64-linux-gnu/libx.so.1").symlink_to("libx.so.1.2")
    file = tmp_path / "demo.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "--build", source, file], check=True, capture_output=True
    )
    tree = read_package(file)
    assert tree["usr/bin/su"] == File(b"x", 0o755)
    assert "usr/lib/x86_64-linux-gnu/libx.so.1" in tree
    assert not any(path.split("/")[0] in ("bin", "lib") for path in tree)
