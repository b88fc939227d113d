"""Which files of Debian packages are in the image."""

from __future__ import annotations

import pytest

from deploy.image.debian import Package
from deploy.image.errors import ImageBuildError
from deploy.image.rootfs import (
    bundle_certificates,
    choose,
    is_kept,
    licences,
    own_entries,
    python_of,
)
from deploy.image.tree import Directory, Entry, File, Link

LIBRARIES = "usr/lib/x86_64-linux-gnu"


def package(name: str, version: str = "1") -> Package:
    return Package(name, version, f"{name}_{version}_amd64.deb")


@pytest.mark.parametrize(
    "path",
    [
        "usr/bin/python3",
        "usr/bin/python3.13",
        "usr/lib/python3.13/asyncio/events.py",
        "usr/lib/python3.13/lib-dynload/_ssl.cpython-313-aarch64-linux-gnu.so",
        f"{LIBRARIES}/libc.so.6",
        "usr/lib/aarch64-linux-gnu/libssl.so.3",
        "usr/lib64/ld-linux-x86-64.so.2",
        "usr/lib/ld-linux-aarch64.so.1",
        "usr/sbin/ldconfig",
        "etc/ld.so.conf.d/libc.conf",
        "etc/debian_version",
        "usr/bin/busybox",
    ],
)
def test_what_runs_python_is_kept(path: str) -> None:
    assert is_kept(path)


@pytest.mark.parametrize(
    "path",
    [
        "usr/bin/dpkg",
        "usr/bin/tar",
        "usr/bin/openssl",
        "usr/bin/py3compile",
        "usr/share/man/man1/python3.1.gz",
        "usr/share/locale/de/LC_MESSAGES/dpkg.mo",
        "usr/share/doc/libc6/changelog.Debian.gz",
        "var/lib/dpkg/status",
        f"{LIBRARIES}/gconv/UTF-16.so",
        f"{LIBRARIES}/libpython3.11.a",
        "usr/lib/python3.11/config-3.11-x86_64-linux-gnu/Makefile",
        "usr/lib/python3.11/sqlite3/dbapi2.py",
        "usr/lib/python3.11/lib-dynload/_sqlite3.cpython-311-x86_64-linux-gnu.so",
        "usr/lib/python3.11/lib-dynload/_testcapi.cpython-311-x86_64-linux-gnu.so",
        "usr/lib/python3.11/sitecustomize.py",
        "usr/lib/python3.11/__pycache__/os.cpython-311.pyc",
    ],
)
def test_what_nobody_needs_is_left_out(path: str) -> None:
    assert not is_kept(path)


def test_files_are_chosen_from_all_packages_and_known_by_their_owner() -> None:
    python, other = package("python3.11-minimal"), package("dpkg")
    interpreter = File(b"elf", 0o755)
    packages: dict[Package, dict[str, Entry]] = {
        python: {"usr/bin": Directory(), "usr/bin/python3.11": interpreter},
        other: {"usr/bin/dpkg": File(b"elf", 0o755)},
    }
    assert choose(packages) == (
        {"usr/bin/python3.11": interpreter},
        {"usr/bin/python3.11": python},
    )


def test_the_release_decides_on_the_version_of_python() -> None:
    assert python_of({"usr/bin/python3": Link("python3.13")}, (3, 11)) == "python3.13"


def test_a_release_with_an_old_python_is_refused() -> None:
    tree = {"usr/bin/python3": Link("python3.9")}
    with pytest.raises(
        ImageBuildError, match=r"has python3\.9, and gpuslice requires 3\.11 or newer"
    ):
        python_of(tree, (3, 11))


def test_a_release_without_python_is_refused() -> None:
    with pytest.raises(ImageBuildError, match="has no link usr/bin/python3"):
        python_of({}, (3, 11))


def test_certificates_become_one_file_in_a_fixed_order() -> None:
    place = "usr/share/ca-certificates/mozilla"
    tree = {f"{place}/b.crt": File(b"B"), f"{place}/a.crt": File(b"A\n"), "etc/x": File(b"x")}
    assert bundle_certificates(tree) == {
        "etc/x": File(b"x"),
        "etc/ssl/certs/ca-certificates.crt": File(b"A\nB\n"),
    }


def test_old_places_of_programs_and_libraries_lead_to_the_new_ones() -> None:
    own = own_entries({"usr/lib64/ld-linux-x86-64.so.2": Link("/lib/x86_64-linux-gnu/ld")})
    links = {name: own[name] for name in ("bin", "lib", "lib64", "sbin")}
    assert links == {name: Link(f"usr/{name}") for name in links}
    assert "lib64" not in own_entries({"usr/lib/ld-linux-aarch64.so.1": Link("x")})


def test_licences_of_what_is_taken_are_taken_too_wherever_they_are() -> None:
    own, pointing, target = package("zlib1g", "1:1.2"), package("libgcc-s1"), package("gcc-12-base")
    packages: dict[Package, dict[str, Entry]] = {
        own: {"usr/share/doc/zlib1g/copyright": File(b"zlib")},
        pointing: {"usr/share/doc/libgcc-s1": Link("gcc-12-base")},
        target: {"usr/share/doc/gcc-12-base/copyright": File(b"GPL")},
        package("dpkg"): {"usr/share/doc/dpkg/copyright": File(b"GPL")},
    }
    assert licences(packages, [own, pointing]) == {
        "usr/share/doc/zlib1g/copyright": File(b"zlib"),
        "usr/share/doc/libgcc-s1": Link("gcc-12-base"),
        "usr/share/doc/gcc-12-base/copyright": File(b"GPL"),
        "usr/share/doc/gpuslice/debian-packages": File(b"libgcc-s1 1\nzlib1g 1:1.2\n"),
    }
