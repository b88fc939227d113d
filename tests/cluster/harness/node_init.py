"""The first process of a node: makes the place that the node's programs run in, and keeps it.

    python node_init.py NODE_DIRECTORY

A node has its own pid namespace, so that all its processes, containers included, end with this one;
and its own mount namespace, in which the places that Kubernetes and NVIDIA's programs hard-code are
directories of the node. Once they are there, NODE_DIRECTORY/init.pid holds the process id by which
other programs enter.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

from gpuslice_sim.namespace import enter
from gpuslice_sim.node import PLACE_IN_CONTAINERS, SimNode

_CLONE_NEWNS, _CLONE_NEWPID, _PR_SET_PDEATHSIG = 0x20000, 0x20000000, 1

# Arguments: the node's directory, the place of its driver. A tmpfs with everything of the old
# directory bound into it takes new entries without a trace on the machine.
_MOUNTS = r"""
set -eu
node=$1
open() {
    mount -t tmpfs none "$node/mnt"
    for entry in "$1"/*; do
        new="$node/mnt/${entry##*/}"
        if [ -L "$entry" ]; then cp -P "$entry" "$new"
        elif [ -d "$entry" ]; then mkdir "$new"; mount --rbind "$entry" "$new"
        elif [ -e "$entry" ]; then : > "$new"; mount --bind "$entry" "$new"
        fi
    done
    mount --move "$node/mnt" "$1"
}
place() {
    mkdir -p "$2"
    mount --bind "$1" "$2"
}
open /var/lib
open /var/log
place "$node/kubelet" /var/lib/kubelet
place "$node/containerd" /var/lib/containerd
place "$node/pods" /var/log/pods
place "$node/containers" /var/log/containers
# Programs of ours keep lists for nested nodes there.
place "$node/gpuslice" /var/lib/gpuslice
place "$node/run" /run
place "$node/sim" "$2"
mount --make-rshared /var/lib/kubelet
mount --make-rshared /run
# The kubelet insists on these; the machine's own settings are not for a test to change.
keep() {
    mkdir -p "$node/sysctl"
    echo "$2" > "$node/sysctl/${1##*/}"
    mount --bind "$node/sysctl/${1##*/}" "/proc/sys/$1"
}
keep vm/overcommit_memory 1
keep vm/panic_on_oom 0
keep kernel/panic 10
keep kernel/panic_on_oops 1
keep kernel/keys/root_maxkeys 1000000
keep kernel/keys/root_maxbytes 25000000
"""


def main(directory: Path) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWPID) != 0:
        raise OSError(ctypes.get_errno(), "cannot make a pid namespace")
    ready_read, ready_write = os.pipe()
    child = os.fork()
    if child == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(ready_read)
        _become_init(libc, directory, ready_write)
    os.close(ready_write)
    if os.read(ready_read, 1):
        fresh = directory / ".init.pid"
        fresh.write_text(str(child))
        fresh.rename(directory / "init.pid")
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) and 1


def _become_init(libc: ctypes.CDLL, directory: Path, ready: int) -> None:
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "cannot make a mount namespace")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
    enter(SimNode.open(directory / "sim"))
    subprocess.run(["sh", "-c", _MOUNTS, "sh", str(directory), PLACE_IN_CONTAINERS], check=True)
    os.write(ready, b"1")
    os.close(ready)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:  # orphans of the whole node end up here
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigtimedwait([signal.SIGCHLD], 1.0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
