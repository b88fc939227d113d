"""The scenes of the demo, in order."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence

from gpuslice.report.demo.stage import RESOURCE, Running, Stage
from gpuslice.report.demo.view import View
from gpuslice_sim.kubelet import AdmissionError, StartError

_FATAL_XID = 79


def play(stage: Stage, view: View, pods: Sequence[int]) -> None:
    _show_node(stage, view)
    _start_everything(stage, view)
    for number, units in enumerate(pods):
        _run_pod(stage, view, f"pod-{chr(ord('a') + number % 26)}", units)
    _request_too_much(stage, view)
    _break_a_gpu(stage, view)
    _break_mps(stage, view)
    view.scene("End")
    view.line("The agent, NVML calls, gRPC and limits were real; only the driver was simulated.")


def keep_running(stage: Stage, view: View) -> None:
    """Keeps everything running until it is interrupted, and reports changes."""
    pods = stage.directory / "pods"
    pods.mkdir()
    for running in stage.running:
        lines = [f"{key}={shlex.quote(value)}" for key, value in sorted(running.env.items())]
        (pods / f"{running.name}.env").write_text("\n".join(lines) + "\n")
    view.scene("Kept running: try these commands in another terminal, stop with Ctrl-C")
    node = stage.node.directory
    view.command(f"gpuslice-sim fault {node} xid 1 79")
    view.command(f"LD_LIBRARY_PATH={stage.node.lib} PATH={stage.node.bin}:$PATH nvidia-smi -L")
    for running in stage.running[:1]:
        view.command(f"env -i $(cat {pods}/{running.name}.env) {stage.node.bin}/simcuda fill")
    view.command(f"tail -f {stage.agent.log}")
    seen = stage.kubelet.allocatable(RESOURCE)
    while True:
        time.sleep(0.2)
        now = stage.kubelet.allocatable(RESOURCE)
        if now != seen:
            seen = now
            view.line(f"{RESOURCE}: {now} of {stage.kubelet.capacity(RESOURCE)} units allocatable")


def _show_node(stage: Stage, view: View) -> None:
    view.scene("A node with simulated GPUs")
    view.command(f"gpuslice-sim create {stage.node.directory} --profile {stage.profile}")
    view.gpus(stage.gpus)


def _start_everything(stage: Stage, view: View) -> None:
    view.scene("The administrator starts MPS and the agent; users change nothing")
    view.command("nvidia-smi -c EXCLUSIVE_PROCESS")
    view.command(f"CUDA_MPS_PIPE_DIRECTORY={stage.pipe} nvidia-cuda-mps-control -d")
    stage.start_mps()
    stage.start_kubelet()
    view.command(shlex.join(["gpuslice", *stage.agent_arguments()]))
    stage.start_agent()
    endpoint = stage.kubelet.wait_for(RESOURCE)
    view.good(
        f"the kubelet sees {RESOURCE}: {stage.kubelet.allocatable(RESOURCE)} "
        f"({len(stage.gpus)} GPUs in units of 1 GiB, a list of {endpoint.last_list_bytes} bytes)"
    )


def _run_pod(stage: Stage, view: View, name: str, units: int) -> None:
    view.scene(f"{name} requests {units} GiB")
    try:
        running = stage.run_pod(name, units)
    except AdmissionError as refused:
        view.bad(f"{name} is not admitted")
        view.quote("event of the pod", str(refused))
        return
    view.line("  its container received")
    view.env(running.env)
    _prove_limit(stage, view, running)
    _show_occupancy(stage, view)


def _prove_limit(stage: Stage, view: View, running: Running) -> None:
    view.command("simcuda fill    # in the container: allocate until an allocation fails")
    used = stage.simcuda(running, "fill")
    [device] = stage.simcuda(running, "info")["devices"]
    limit, total = running.units << 30, used["total_bytes"]
    shares = f"{device['sms']} of {device['sms_total']} SMs"
    if total == limit:
        context = used["context_bytes"] >> 20
        view.good(
            f"{used['error']} at exactly {total} bytes = {running.units} GiB "
            f"(of which {context} MiB are its CUDA context); {shares}"
        )
    else:
        view.bad(
            f"{used['error']} at {total} bytes, before its limit of {limit}: the card is full, "
            "because the driver and the MPS server use memory, too (see --memory-reserve); "
            f"{shares}"
        )


def _request_too_much(stage: Stage, view: View) -> None:
    free = stage.free_units()
    units, total = max(free.values()) + 1, sum(free.values())
    where = "but not on one GPU" if total >= units else "which is not enough"
    view.scene(f"pod-big requests {units} GiB; {total} GiB are free, {where}")
    try:
        stage.run_pod("pod-big", units)
    except AdmissionError as refused:
        view.bad("pod-big is not admitted")
        view.quote("event of the pod", str(refused))


def _break_a_gpu(stage: Stage, view: View) -> None:
    gpu = stage.gpus[0]
    view.scene(f"GPU {gpu.minor} reports XID {_FATAL_XID}: the GPU has fallen off the bus")
    view.command(f"gpuslice-sim fault {stage.node.directory} xid 0 {_FATAL_XID}")
    stage.node.faults.xid(0, _FATAL_XID)
    stage.kubelet.wait_until(lambda: stage.free_units()[gpu.uuid] == 0, "the GPU to be unhealthy")
    _show_occupancy(stage, view)
    allocatable, capacity = stage.kubelet.allocatable(RESOURCE), stage.kubelet.capacity(RESOURCE)
    view.good(
        f"all its slices are unhealthy at once: {allocatable} of {capacity} units allocatable"
    )
    if max(stage.free_units().values()):
        running = stage.run_pod("pod-next", 1)
        minor = next(g.minor for g in stage.gpus if g.uuid == running.gpu)
        view.good(f"the next pod goes to GPU {minor}")


def _break_mps(stage: Stage, view: View) -> None:
    if not stage.running:
        return
    view.scene("MPS crashes: no container starts without limits")
    allocatable = stage.kubelet.allocatable(RESOURCE)
    stage.mps.kill()
    view.command("kill -9 $(pidof nvidia-cuda-mps-control)")
    running = stage.running[-1]
    try:
        stage.kubelet.start_container(running.allocation.pod, "main")
    except StartError as refused:
        view.bad(f"{running.name} restarts and must wait")
        view.quote("event of the pod", str(refused))
    stage.mps.start()
    stage.kubelet.start_container(running.allocation.pod, "main")
    # Meanwhile all slices may have been unhealthy.
    stage.kubelet.wait_until(
        lambda: stage.kubelet.allocatable(RESOURCE) == allocatable, "healthy slices"
    )
    view.good("MPS is back, the container starts")


def _show_occupancy(stage: Stage, view: View) -> None:
    devices = stage.kubelet.devices(RESOURCE)
    rows = []
    for gpu in stage.gpus:
        mine = {i: h for i, h in devices.items() if i.startswith(gpu.uuid)}
        used = sum(running.units for running in stage.running if running.gpu == gpu.uuid)
        healthy = all(health == "Healthy" for health in mine.values())
        rows.append((f"GPU {gpu.minor}", used, len(mine), healthy))
    view.occupancy(rows)
