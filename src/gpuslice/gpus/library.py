"""Finds the driver's libraries below a driver root."""

from __future__ import annotations

from pathlib import Path

from gpuslice.files.rooted_tree import Tree

NVML = "libnvidia-ml.so.1"

_TRIPLETS = ("x86_64-linux-gnu", "aarch64-linux-gnu")
# Where distributions install the driver, in the order in which they are searched.
LIBRARY_DIRECTORIES = (
    "/usr/lib64",
    *(f"/usr/lib/{triplet}" for triplet in _TRIPLETS),
    *(f"/usr/lib/{triplet}/nvidia/current" for triplet in _TRIPLETS),
    "/lib64",
    *(f"/lib/{triplet}" for triplet in _TRIPLETS),
    *(f"/lib/{triplet}/nvidia/current" for triplet in _TRIPLETS),
    "/usr/lib",
)


def find_nvml(root: Path) -> Path | None:
    """The file of the NVML library. None: load it by name."""
    return find_library(root, NVML)


def find_library(root: Path, name: str) -> Path | None:
    """None if it does not exist, or if the root is that of this process: load it by name then."""
    if root == Path("/"):
        return None  # the loader searches more directories than these
    tree = Tree(root)
    real = (tree.resolve(f"{directory}/{name}") for directory in LIBRARY_DIRECTORIES)
    files = (tree.at(path) for path in real if path is not None)
    return next((file for file in files if file.is_file()), None)
