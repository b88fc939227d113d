"""Groups of tests that can run at the same time, each in a process with clusters of its own."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

# Patterns of modules. Those of a group use the same clusters. The longest groups come first.
_GROUPS = (
    (
        "test_existing",
        "test_harness",
        "test_held_limits",
        "test_late_binding",
        "test_manifests",
        "test_memory_limits",
        "test_restarts",
        "test_slices",
        "test_thread_annotations",
        "test_units",
    ),
    ("test_labels", "test_node_config", "test_nvidia_*"),
    ("test_advertising", "test_nested"),
    ("test_daemonsets",),
    ("test_managed_mps",),
    ("*",),
)


def group(module: str) -> int:
    return next(n for n, names in enumerate(_GROUPS) if any(fnmatch(module, one) for one in names))


class ByCluster(LoadScopeScheduling):
    """Sends whole groups to workers."""

    def _split_scope(self, nodeid: str) -> str:
        return str(group(Path(nodeid.partition("::")[0]).stem))
