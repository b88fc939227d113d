"""Finds the files of a driver below its root.

Paths are absolute paths within that root. Containers use the same paths.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from gpuslice.files.rooted_tree import Tree
from gpuslice.gpus.device_nodes import Link
from gpuslice.gpus.elf import soname
from gpuslice.gpus.library import LIBRARY_DIRECTORIES

_PROGRAM_DIRECTORIES = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
_SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
_FIRMWARE = ("gsp*.bin", "ucodes*.bin")
# Libraries of other projects that the driver ships. Their names do not contain its version.
_EXPLICIT_LIBRARIES = (
    "libEGL.so",
    "libGL.so",
    "libGLESv1_CM.so",
    "libGLESv2.so",
    "libGLX.so",
    "libGLdispatch.so",
    "libOpenCL.so",
    "libOpenGL.so",
    "libnvidia-api.so",
    "libnvidia-egl-xcb.so",
    "libnvidia-egl-xlib.so",
)
_GRAPHICS_LIBRARIES = tuple(
    f"libnvidia-egl-{name}.so.*.*" for name in ("gbm", "wayland", "wayland2", "xcb", "xlib")
)
_SHARED_CONFIGS = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
_ETC_CONFIGS = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.{machine}.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
    "OpenCL/vendors/nvidia.icd",
)
_CONFIG_DIRECTORIES = ("/etc", "/usr/local/share", "/usr/share")


@dataclass(frozen=True, slots=True)
class Library:
    path: str
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Graphics loaders search fixed paths, which may differ from the path on the host."""

    path: str
    container_path: str


@dataclass(frozen=True, slots=True)
class DriverFiles:
    version: str
    # The directory of libcuda; None if no library of this version was found.
    library_directory: str | None = None
    # Libraries that the dynamic loader must find.
    libraries: tuple[Library, ...] = ()
    # Libraries that are opened by their path.
    modules: tuple[Library, ...] = ()
    configs: tuple[ConfigFile, ...] = ()
    programs: tuple[str, ...] = ()
    firmware: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()


def seen_driver_root(container_driver_root: str, driver_root: str) -> Tree:
    """The driver root as the agent sees it: mounted, or at the same path as on the host."""
    mounted = Path(container_driver_root)
    return Tree(mounted if mounted.is_dir() else Path(driver_root))


def seen_dev_root(driver: Tree) -> Tree:
    """The root of the device nodes: the driver root if it has /dev, or that of the agent."""
    return driver if driver.is_directory("/dev") else Tree(Path("/"))


def find_driver_files(tree: Tree, version: str, flags: frozenset[str] = frozenset()) -> DriverFiles:
    directory = _library_directory(tree, version)
    if directory is None:
        return DriverFiles(version)
    patterns = [f"{path}/*.so.{version}" for path in (directory, f"{directory}/vdpau")]
    if "enable-explicit-driver-libraries" in flags:
        patterns += [f"{directory}/{name}" for name in _EXPLICIT_LIBRARIES]
    libraries = tree.resolved(path for pattern in patterns for path in tree.matching(pattern))
    return DriverFiles(
        version=version,
        library_directory=directory,
        libraries=tuple(_library(tree, path) for path in libraries),
        modules=_modules(tree, directory, version),
        configs=_configs(tree),
        programs=_programs(tree),
        firmware=_firmware(tree, version),
        sockets=() if "disable-ipc-discoverer" in flags else _sockets(tree),
    )


def _library_directory(tree: Tree, version: str) -> str | None:
    for name in ("libcuda.so", "libnvidia-ml.so"):
        paths = tree.resolved(f"{path}/{name}.{version}" for path in LIBRARY_DIRECTORIES)
        if paths:
            return str(PurePosixPath(paths[0]).parent)
    return None


def _library(tree: Tree, path: str) -> Library:
    links = dict.fromkeys([*_known_links(path), *_loader_links(tree, path)])
    return Library(path, tuple(links))


def _known_links(path: str) -> Iterator[Link]:
    """Links that programs depend on, and that some distributions do not create."""
    directory, name = PurePosixPath(path).parent, PurePosixPath(path).name
    if fnmatchcase(name, "libcuda.so.*.*"):
        yield Link("libcuda.so.1", f"{directory}/libcuda.so")
    elif fnmatchcase(name, "libGLX_nvidia.so.*.*"):
        yield Link(name, f"{directory}/libGLX_indirect.so.0")
    elif fnmatchcase(name, "libnvidia-opticalflow.so.*.*"):
        yield Link("libnvidia-opticalflow.so.1", f"{directory}/libnvidia-opticalflow.so")
    elif fnmatchcase(name, "libnvidia-allocator.so.*.*"):
        yield Link("../libnvidia-allocator.so.1", f"{directory}/gbm/nvidia-drm_gbm.so")
    elif fnmatchcase(name, "libnvidia-vulkan-producer.so.*.*"):
        yield Link(name, f"{directory}/libnvidia-vulkan-producer.so")
    elif fnmatchcase(name, "libglxserver_nvidia.so.*.*"):
        yield Link(name, f"{directory}/libglxserver_nvidia.so")


def _loader_links(tree: Tree, path: str) -> Iterator[Link]:
    """lib.so -> lib.so.1 -> lib.so.570.1, as far as these links exist on the host."""
    directory, name = PurePosixPath(path).parent, PurePosixPath(path).name
    if not fnmatchcase(name, "*.*.*"):
        return
    loaded_as = _soname(tree.at(path)) or name
    if loaded_as != name and tree.is_link(f"{directory}/{loaded_as}"):
        yield Link(name, f"{directory}/{loaded_as}")
    stem, dot_so, _ = loaded_as.partition(".so")
    plain = f"{stem}{dot_so}"
    if dot_so and plain != loaded_as and tree.is_link(f"{directory}/{plain}"):
        yield Link(loaded_as, f"{directory}/{plain}")


def _soname(path: Path) -> str | None:
    try:
        with path.open("rb") as library:
            return soname(library)
    except OSError:
        return None


def _modules(tree: Tree, directory: str, version: str) -> tuple[Library, ...]:
    libraries = tree.resolved(
        path for pattern in _GRAPHICS_LIBRARIES for path in tree.matching(f"{directory}/{pattern}")
    )
    directories = [f"{directory}/nvidia/xorg"]
    for base in (f"{directory}/xorg", "/usr/lib/xorg", "/usr/lib64/xorg"):
        for part in ("modules", "modules/updates"):
            directories += [f"{base}/{part}/{kind}" for kind in ("drivers", "extensions")]
    for name in ("nvidia_drv.so", f"libglxserver_nvidia.so.{version}"):
        libraries += tree.first(directories, name)
    return tuple(Library(path, tuple(_known_links(path))) for path in libraries)


def _configs(tree: Tree) -> tuple[ConfigFile, ...]:
    found = {}
    machine = os.uname().machine
    for container_root, names in (("/usr/share", _SHARED_CONFIGS), ("/etc", _ETC_CONFIGS)):
        for name in (name.format(machine=machine) for name in names):
            for path in tree.first(_CONFIG_DIRECTORIES, name):
                found[path] = ConfigFile(path, f"{container_root}/{name}")
    return tuple(found.values())


def _programs(tree: Tree) -> tuple[str, ...]:
    candidates = ([f"{path}/{name}" for path in _PROGRAM_DIRECTORIES] for name in _PROGRAMS)
    found = (next(filter(tree.is_program, paths), None) for paths in candidates)
    return tuple(path for path in found if path is not None)


def _firmware(tree: Tree, version: str) -> tuple[str, ...]:
    release = os.uname().release
    directories = [
        *_custom_firmware_directory(),
        f"/lib/firmware/updates/{release}",
        "/lib/firmware/updates",
        f"/lib/firmware/{release}",
        "/lib/firmware",
    ]
    patterns = [f"{path}/nvidia/{version}/{name}" for path in directories for name in _FIRMWARE]
    paths = dict.fromkeys(path for pattern in patterns for path in tree.matching(pattern))
    return tuple(filter(tree.is_file, paths))


def _custom_firmware_directory() -> tuple[str, ...]:
    try:
        path = Path("/sys/module/firmware_class/parameters/path").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ()
    return (path.rstrip("/"),) if path.startswith("/") else ()


def _sockets(tree: Tree) -> tuple[str, ...]:
    found = (tree.first(("/run", "/var/run"), name) for name in _SOCKETS)
    return tuple(path for paths in found for path in paths)
