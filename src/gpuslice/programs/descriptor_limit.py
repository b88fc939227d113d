"""The number of files and sockets that a process may open."""

from __future__ import annotations

import resource

from gpuslice.codes import Code
from gpuslice.node.errors import ProgramError

# gRPC crashes if it cannot open what it needs. An agent with many resources needs about half.
FEWEST = 128
# Daemons that a program starts inherit the limit, and some close every possible descriptor.
_MOST = 65_536


def raise_descriptor_limit() -> None:
    """Raises the soft limit to the hard one. Raises ProgramError if that is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if most < FEWEST:
        raise ProgramError(
            Code.TOO_FEW_DESCRIPTORS,
            f"this process may open {most} files, and needs at least {FEWEST}: raise the limit of "
            "open files of the container runtime (LimitNOFILE of its systemd unit), or ulimit -n",
        )
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
