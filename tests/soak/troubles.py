"""What can go wrong on a node. Each trouble returns what ends it."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
from collections.abc import Callable

from tests.unit.config.hostile import HOSTILE

from .node import GOOD, GPU_MIB, SoakNode

End = Callable[[], None]
Trouble = Callable[[SoakNode, random.Random], End]

ABSURD_BYTES = 1 << 63
FATAL_XID = 79
GPUS = 4


def nothing() -> None:
    """A trouble that ends by itself."""


def kill_agent(node: SoakNode, rng: random.Random) -> End:
    del rng
    node.kill_agent()
    return nothing


def kill_mps(node: SoakNode, rng: random.Random) -> End:
    rng.choice([node.kill_mps_program, node.kill_replica_daemons, node.kill_mps_servers])()
    return nothing


def kill_mps_of_slices(node: SoakNode, rng: random.Random) -> End:
    """The operator of the node starts it again, at once or later."""
    node.kill_mps_daemon()
    if rng.random() < 0.5:
        node.start_mps_daemon()
    return node.start_mps_daemon


def delete_sockets(node: SoakNode, rng: random.Random) -> End:
    """As a container can. The sockets of the replicas' daemon are put back by its program."""
    name = rng.choice(["control", "control_privileged"])
    if rng.random() < 0.5:
        (node.replica_pipe / name).unlink(missing_ok=True)
        return nothing
    (node.rig.pipe / name).unlink(missing_ok=True)

    def restart() -> None:
        node.kill_mps_daemon()
        node.start_mps_daemon()

    return restart


def occupy_mps(node: SoakNode, rng: random.Random) -> End:
    """A program that keeps its connection to a daemon, as a container can."""
    pipe = rng.choice([node.rig.pipe, node.replica_pipe])
    program = subprocess.Popen(
        [node.rig.node.bin / "nvidia-cuda-mps-control"],
        env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    )
    assert program.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        program.stdin.write("get_server_list\n")

    def end() -> None:
        program.kill()
        program.wait()

    return end


def restart_kubelet(node: SoakNode, rng: random.Random) -> End:
    del rng
    node.rig.kubelet.restart()
    return nothing


def hang_driver(node: SoakNode, rng: random.Random) -> End:
    faults = node.rig.node.faults
    gpu = rng.choice([None, *range(GPUS)])
    faults.hang(gpu)
    return lambda: faults.hang(gpu, hangs=False)


def garble_gpu(node: SoakNode, rng: random.Random) -> End:
    """NVML reports nonsense about one GPU, or an error."""
    sim, gpu = node.rig.node, rng.randrange(GPUS)
    key = f"gpu.{gpu}.memory.total"
    if rng.random() < 0.5:
        sim.faults.call(gpu, "nvmlDeviceGetName", "UNKNOWN")
        return lambda: sim.faults.call(gpu, "nvmlDeviceGetName", None)
    sim.set({key: rng.choice([0, ABSURD_BYTES])})
    return lambda: sim.set({key: GPU_MIB << 20})


def xid(node: SoakNode, rng: random.Random) -> End:
    """A GPU that had a fatal XID is healthy when it comes back after a reset."""
    faults, gpu = node.rig.node.faults, rng.randrange(GPUS)
    uuid = node.rig.node.gpu(gpu).uuid
    for _ in range(rng.choice([1, 1, 50])):
        faults.xid(gpu, FATAL_XID)

    def reset() -> None:
        faults.unplug(uuid)
        faults.plug(uuid)

    return reset


def lose_gpu(node: SoakNode, rng: random.Random) -> End:
    faults, gpu = node.rig.node.faults, rng.randrange(GPUS)
    faults.lost(gpu)
    return lambda: faults.restore(gpu)


def edit_config(node: SoakNode, rng: random.Random) -> End:
    text = rng.choice(sorted(HOSTILE.values(), key=str))
    node.write_config(text)
    if rng.random() < 0.5 and node.agent.returncode is None:
        node.agent.send(signal.SIGHUP)
    return lambda: node.write_config(GOOD)


def misbehave_on_port(node: SoakNode, rng: random.Random) -> End:
    """Idle connections, garbage and requests that never end."""
    host, _, port = node.metrics_address.rpartition(":")
    opened: list[socket.socket] = []
    for _ in range(rng.randrange(1, 40)):
        with contextlib.suppress(OSError):
            client = socket.create_connection((host, int(port)), timeout=1)
            opened.append(client)
            client.sendall(
                rng.choice(
                    [
                        b"",
                        b"\x00\xff" * 100,
                        b"GET /metrics HTTP/1.1\r\nAccept: text/plain; version=abc\r\n\r\n",
                        b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 20_000,
                        b"GET /" * 2000,
                    ]
                )
            )

    def close() -> None:
        for client in opened:
            client.close()

    return close


TROUBLES: tuple[Trouble, ...] = (
    restart_kubelet,
    hang_driver,
    garble_gpu,
    xid,
    lose_gpu,
    edit_config,
    edit_config,
    misbehave_on_port,
    misbehave_on_port,
    kill_mps,
    kill_mps_of_slices,
    delete_sockets,
    occupy_mps,
)
