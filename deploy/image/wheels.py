"""Python packages of the image: the locked dependencies, and gpuslice itself."""

from __future__ import annotations

import shutil
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path

from .commands import run
from .tree import Entry, File

_NETWORK = "check the network, or set UV_DEFAULT_INDEX to a package index that can be reached"
# Files of installers, sources of compiled modules, and an example.
_SKIPPED = (
    *("bin", ".lock", "example.py", "*.pyi", "*.pyx", "*.pxd", "*.c", "*.h"),
    *(
        f"*.dist-info/{name}"
        for name in ("RECORD", "INSTALLER", "REQUESTED", "WHEEL", "direct_url.json", "uv_*.json")
    ),
)


def locked_requirements(uv: Path) -> str:
    output = run(
        [uv, "export", "--frozen", "--no-dev", "--no-emit-project", "--no-header", "--no-annotate"],
        remedy="run uv lock, and check pyproject.toml",
    )
    return output.decode()


def install_requirements(
    uv: Path, requirements: str, target: Path, *, python: str, machine: str
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        listed = Path(scratch) / "requirements.txt"
        listed.write_text(requirements, encoding="utf-8")
        _install(uv, target, python, machine, "--require-hashes", "--requirements", listed)
    tidy(target)


def install_gpuslice(uv: Path, target: Path, *, python: str, machine: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        run(
            [
                *(uv, "build", "--wheel", "--package", "gpuslice", "--out-dir", scratch),
                *("--python", sys.executable),
            ],
            remedy=_NETWORK,
        )
        [wheel] = Path(scratch).glob("*.whl")
        _install(uv, target, python, machine, wheel)
    tidy(target)


def tidy(target: Path) -> None:
    for path in sorted(target.rglob("*"), reverse=True):
        name = str(path.relative_to(target))
        if not any(fnmatchcase(name, pattern) for pattern in _SKIPPED):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def program(entry_point: str) -> Entry:
    """A script for an entry point `module:function`.

    The interpreter has no flags, because config-manager finds the agent by the first two words of
    its command line.
    """
    module, _, function = entry_point.partition(":")
    lines = [
        "#!/usr/bin/python3",
        "import sys",
        f"from {module} import {function}",
        f"sys.exit({function}())",
    ]
    return File("".join(f"{line}\n" for line in lines).encode(), 0o755)


def _install(uv: Path, target: Path, python: str, machine: str, *what: str | Path) -> None:
    run(
        [
            *(uv, "pip", "install", "--target", target, "--no-deps", "--only-binary", ":all:"),
            # The Python of uv; the wheels are for the Python of the image.
            *("--python", sys.executable),
            *("--link-mode", "copy", "--python-version", python.removeprefix("python")),
            *("--python-platform", f"{machine}-manylinux_2_28", *what),
        ],
        remedy=_NETWORK,
    )
