"""The userland below the wheels: the parts of Debian packages that Python needs."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from .debian import Package, Platform
from .errors import ImageBuildError
from .sysroot import Sysroot, shared_objects
from .tree import Directory, Entry, File, Link, Tree, read_directory, write_directory

PACKAGES = (
    "base-files",
    "busybox-static",
    "ca-certificates",
    "libc-bin",
    "libpython3-stdlib",
    "libstdc++6",
    "python3-minimal",
)

_CERTIFICATES = "usr/share/ca-certificates/"
# The files to keep of all packages; of libraries, only those that are needed.
_KEPT = (
    # NVIDIA's hooks use the first of these to find the directories of libraries.
    *("etc/debian_version", "etc/os-release", "usr/lib/os-release"),
    "usr/share/common-licenses/*",
    *("etc/ld.so.conf", "etc/ld.so.conf.d/*", "usr/sbin/ldconfig"),
    *("usr/lib64/*", "usr/lib/ld-linux*", "usr/lib/*-linux-gnu/*.so", "usr/lib/*-linux-gnu/*.so.*"),
    *("usr/bin/python3", "usr/bin/python3.*", "usr/lib/python3.*/*"),
    "usr/bin/busybox",
    f"{_CERTIFICATES}*.crt",
)
_SKIPPED = (
    # Character sets, engines and other plug-ins of libraries.
    "usr/lib/*-linux-gnu/*/*",
    *("*.a", "*/__pycache__/*", "*/sitecustomize.py", "usr/lib/python3.*/config-*"),
    # Modules for terminals, databases, sound, tutorials, installation and tests of Python. The
    # libraries that only they need are removed, too.
    *(
        f"usr/lib/python3.*/{name}/*"
        for name in (
            *("curses", "dbm", "distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data"),
            *("sqlite3", "test", "tkinter", "turtledemo", "venv"),
        )
    ),
    *(
        f"usr/lib/python3.*/lib-dynload/{name}.*"
        for name in (
            *("_crypt", "_ctypes_test", "_curses*", "_dbm", "_gdbm", "_sqlite3", "_test*"),
            *("_tkinter", "_xx*", "nis", "ossaudiodev", "readline", "xx*"),
        )
    ),
    *(f"usr/lib/python3.*/{name}.py" for name in ("antigravity", "this", "turtle")),
)
# Wheels and programs of the driver expect these packages on any system.
_WHOLE = frozenset({"libc6", "libgcc-s1", "libstdc++6"})
_SHELL = (
    *("cat", "df", "env", "find", "grep", "head", "id", "kill", "ls", "mount", "nslookup", "ps"),
    *("readlink", "sh", "sleep", "stat", "tail", "top", "wc", "wget"),
)
_OWN_ENTRIES: Mapping[str, Entry] = {
    "etc/passwd": File(b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"),
    "etc/group": File(b"root:x:0:\nnogroup:x:65534:\n"),
    "etc/nsswitch.conf": File(b"passwd: files\ngroup: files\nhosts: files dns\n"),
    "usr/lib/ssl/cert.pem": Link("/etc/ssl/certs/ca-certificates.crt"),
    "usr/lib/ssl/certs": Link("/etc/ssl/certs"),
    **{name: Link(f"usr/{name}") for name in ("bin", "lib", "sbin")},
    **{name: Directory() for name in ("dev", "proc", "run", "sys", "usr/local/bin", "var/lib")},
    "root": Directory(0o700),
    "tmp": Directory(0o1777),
    "var/run": Link("../run"),
    "var/tmp": Directory(0o1777),
}


def make_userland(
    packages: Mapping[Package, Tree], platform: Platform, scratch: Path, minimum: tuple[int, int]
) -> dict[str, Entry]:
    """The first layer. `scratch` is a temporary directory."""
    chosen, owners = choose(packages)
    python = python_of(chosen, minimum)
    tree = bundle_certificates(chosen) | own_entries(chosen)
    sysroot = Sysroot(scratch, platform.triplet, python)
    write_directory(tree, scratch)
    for path in _unneeded_libraries(tree, owners, sysroot):
        del tree[path], owners[path]
        (scratch / path).unlink()
    library = f"usr/lib/{python}"
    sysroot.compile(scratch / library)
    tree |= read_directory(scratch / library, library)
    return tree | licences(packages, set(owners.values()))


def choose(packages: Mapping[Package, Tree]) -> tuple[dict[str, Entry], dict[str, Package]]:
    """The files to keep, and the package of each."""
    tree: dict[str, Entry] = {}
    owners: dict[str, Package] = {}
    for package, content in packages.items():
        for path, entry in content.items():
            if not isinstance(entry, Directory) and is_kept(path):
                tree[path], owners[path] = entry, package
    return tree, owners


def is_kept(path: str) -> bool:
    return _matches(path, _KEPT) and not _matches(path, _SKIPPED)


def python_of(tree: Tree, minimum: tuple[int, int]) -> str:
    """The name of the interpreter, for example python3.11."""
    link = tree.get("usr/bin/python3")
    found = re.fullmatch(r"python(\d+)\.(\d+)", link.target) if isinstance(link, Link) else None
    if found is None:
        raise ImageBuildError(
            "python3-minimal has no link usr/bin/python3 to its interpreter: build on Debian 12 or "
            "newer, or on Ubuntu 24.04 or newer"
        )
    if (int(found[1]), int(found[2])) < minimum:
        raise ImageBuildError(
            f"this release has {found[0]}, and gpuslice requires {minimum[0]}.{minimum[1]} or "
            "newer: build on Debian 12 or newer, or on Ubuntu 24.04 or newer"
        )
    return found[0]


def bundle_certificates(tree: Tree) -> dict[str, Entry]:
    """Joins all certificates in one file, as the installation of the package does."""
    bundle = [
        entry.content.rstrip() + b"\n"
        for path, entry in sorted(tree.items())
        if path.startswith(_CERTIFICATES) and isinstance(entry, File)
    ]
    others = {path: entry for path, entry in tree.items() if not path.startswith(_CERTIFICATES)}
    return others | {"etc/ssl/certs/ca-certificates.crt": File(b"".join(bundle))}


def own_entries(tree: Tree) -> dict[str, Entry]:
    """Files that the installation of packages creates, and that are not in the packages."""
    tools = {f"usr/bin/{name}": Link("busybox") for name in _SHELL}
    has_lib64 = any(path.startswith("usr/lib64/") for path in tree)
    return {**_OWN_ENTRIES, **tools, **({"lib64": Link("usr/lib64")} if has_lib64 else {})}


def _unneeded_libraries(
    tree: Tree, owners: Mapping[str, Package], sysroot: Sysroot
) -> Iterable[str]:
    directory = f"usr/lib/{sysroot.triplet}/"
    libraries = {
        path for path in tree if path.startswith(directory) and owners[path].name not in _WHOLE
    }
    modules = (sysroot.directory / "usr/lib" / sysroot.python / "lib-dynload").iterdir()
    roots = [sysroot.directory / "usr/bin" / sysroot.python, *shared_objects(modules)]
    needed = {str(path) for root in roots for path in sysroot.libraries(root)}
    links = [entry for path in needed if isinstance(entry := tree.get(path), Link)]
    behind = {f"{directory}{Path(link.target).name}" for link in links}
    return sorted(libraries - needed - behind)


def licences(packages: Mapping[Package, Tree], used: Iterable[Package]) -> dict[str, Entry]:
    """The licences of the packages, and a list of the packages.

    A package may link to the licence of another one, which is then included.
    """
    found: dict[str, Entry] = {}
    contents = {package.name: tree for package, tree in packages.items()}
    names = [package.name for package in used]
    for name in names:
        documents = f"usr/share/doc/{name}"
        for path in (documents, f"{documents}/copyright"):
            match contents.get(name, {}).get(path):
                case File() as entry:
                    found[path] = entry
                case Link(target) as entry:
                    found[path] = entry
                    pointed = posixpath.normpath(f"{posixpath.dirname(path)}/{target}")
                    other = pointed.removeprefix("usr/share/doc/").partition("/")[0]
                    names.extend({other} - set(names))
    lines = sorted(f"{package.name} {package.version}\n" for package in used)
    return found | {"usr/share/doc/gpuslice/debian-packages": File("".join(lines).encode())}


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
