"""Builds the container image from Debian packages and wheels, without a container engine.

The image has three layers, the least frequently changed first: a userland with Python, the locked
dependencies, gpuslice. The cache contains each layer under a key of its inputs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from .cache import Cache, Say, cache_directory, fingerprint, key_of, to_stderr, write_complete
from .commands import ROOT, find_uv, require_debian
from .debian import Package, download, read_package, resolve, this_platform
from .errors import ImageBuildError
from .oci import Layer, compressed_layer, unpack, write_image
from .project import SOURCES, image_name, image_settings, read_project
from .rootfs import PACKAGES, make_userland, python_of
from .sysroot import Sysroot, shared_objects
from .tree import Tree, read_directory, write_directory
from .wheels import install_gpuslice, install_requirements, locked_requirements, program


def build_image(
    target: Path | None = None,
    *,
    name: str | None = None,
    say: Say = to_stderr,
    cache: Path | None = None,
) -> Path:
    """Writes the image for the architecture of this machine to `target`, and returns its path.

    `name` is the name under which engines store it; the manifests have the default.

    Takes half a minute the first time, and some seconds if nothing changed.
    """
    began = time.monotonic()
    require_debian()
    builder = _Builder(Cache(cache or cache_directory()), say)
    project, platform = builder.project, builder.platform
    target = target or ROOT / f"dist/gpuslice-{project.version}-{platform.architecture}.tar"
    layers = builder.layers()
    settings = image_settings(project, platform)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_complete(target, partial(write_image, name or image_name(project), settings, layers))
    except OSError as error:
        raise ImageBuildError(
            f"{target} cannot be written ({error.strerror}): use another file with --output"
        ) from error
    size = target.stat().st_size
    say(f"wrote {target}: {size / 1e6:.1f} MB, in {time.monotonic() - began:.1f} s")
    return target


class _Builder:
    def __init__(self, cache: Cache, say: Say) -> None:
        self.project = read_project()
        self.platform = this_platform()
        self._cache = cache
        self._say = say
        self._uv = find_uv()

    def layers(self) -> list[Layer]:
        with self._cache.exclusive(self._say):
            packages = resolve(PACKAGES)
            recipe = fingerprint(Path(__file__).parent.glob("*.py"), ROOT)
            base_key = key_of(recipe, *(package.file for package in packages))
            base = self._cache.layer("userland", base_key, lambda: self._userland(packages))
            requirements = locked_requirements(self._uv)
            wheels = self._cache.layer(
                "wheels", key_of(base_key, requirements), lambda: self._wheels(base, requirements)
            )
            own = self._cache.layer(
                "gpuslice", key_of(base_key, _sources()), lambda: self._gpuslice(base)
            )
        return [base, wheels, own]

    def _userland(self, packages: list[Package]) -> Layer:
        directory = self._cache.packages
        self._say(f"downloading {len(packages)} Debian packages …")
        download(packages, directory)
        self._say("building the layer with Python …")
        contents = {package: read_package(directory / package.file) for package in packages}
        with tempfile.TemporaryDirectory(prefix="gpuslice-image-") as scratch:
            minimum = self.project.minimum_python
            return compressed_layer(make_userland(contents, self.platform, Path(scratch), minimum))

    def _wheels(self, base: Layer, requirements: str) -> Layer:
        self._say("installing wheels …")
        return self._packages(
            base,
            lambda target, python: install_requirements(
                self._uv, requirements, target, python=python, machine=self.platform.machine
            ),
        )

    def _gpuslice(self, base: Layer) -> Layer:
        self._say(f"installing gpuslice {self.project.version} …")
        programs = {
            f"usr/bin/{name}": program(entry_point)
            for name, entry_point in self.project.programs.items()
        }
        return self._packages(
            base,
            lambda target, python: install_gpuslice(
                self._uv, target, python=python, machine=self.platform.machine
            ),
            programs,
        )

    def _packages(
        self, base: Layer, install: Callable[[Path, str], None], more: Tree | None = None
    ) -> Layer:
        """A layer with the packages that `install` installs, and their bytecode."""
        with self._unpacked(base) as sysroot:
            place = f"usr/local/lib/{sysroot.python}/dist-packages"
            target = sysroot.directory / place
            target.mkdir(parents=True)
            install(target, sysroot.python)
            for library in shared_objects(target.rglob("*")):
                sysroot.libraries(library)
            sysroot.compile(target)
            return compressed_layer({**read_directory(target, place), **(more or {})})

    @contextmanager
    def _unpacked(self, base: Layer) -> Iterator[Sysroot]:
        tree = unpack(base)
        with tempfile.TemporaryDirectory(prefix="gpuslice-image-") as scratch:
            write_directory(tree, Path(scratch))
            python = python_of(tree, self.project.minimum_python)
            yield Sysroot(Path(scratch), self.platform.triplet, python)


def _sources() -> str:
    files = [
        file
        for place in map(ROOT.joinpath, SOURCES)
        for file in ([place] if place.is_file() else place.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    ]
    return fingerprint(files, ROOT)
