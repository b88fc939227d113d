"""Platforms that list no GPUs, and machines without a driver."""

from __future__ import annotations

import signal
import time

import pytest

from gpuslice.codes import Code

from .rig import AGENT, ENTRY_POINTS, GPU, PLUGIN, Rig

NO_DRIVER = {"LD_LIBRARY_PATH": "/nowhere"}


def make_wsl(rig: Rig) -> None:
    rig.node.add_library("libdxcore.so")


def make_tegra(rig: Rig) -> None:
    rig.node.set({"gpu.0.name": "Orin (nvgpu)"})


@pytest.mark.parametrize("entry", ENTRY_POINTS)
@pytest.mark.parametrize(
    ("make", "device", "nodes"),
    [(make_wsl, "all", ["/dev/dxg"]), (make_tegra, "tegra", [])],
    ids=["WSL", "Tegra"],
)
def test_a_placeholder_is_advertised_allocated_and_never_unhealthy(
    rig: Rig, entry: str, make: object, device: str, nodes: list[str]
) -> None:
    assert callable(make)
    make(rig)
    with rig.plugin("--pass-device-specs", entry=entry) as plugin:
        assert rig.wait_for_resources(GPU) == {GPU: [device]}
        answer = rig.allocate(GPU, device)
        assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": device}
        own = [d.container_path for d in answer.devices if "nvidia" not in d.container_path]
        assert own == nodes
        rig.node.faults.xid(0, 79)
        rig.node.faults.lost(1)
        time.sleep(0.7)
        assert rig.healthy(GPU) == {device}
        assert plugin.logged(Code.XID) + plugin.logged(Code.GPU_LOST) == 0


def test_tegra_can_be_selected_without_a_driver(rig: Rig) -> None:
    with rig.plugin("--device-discovery-strategy=tegra", env=NO_DRIVER):
        assert rig.wait_for_resources(GPU) == {GPU: ["tegra"]}


def test_a_placeholder_can_be_shared(rig: Rig) -> None:
    make_wsl(rig)
    text = "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 3}]}}"
    with rig.plugin(rig.config(text)):
        name = "nvidia.com/gpu.shared"
        assert rig.wait_for_resources(name) == {name: ["all::0", "all::1", "all::2"]}
        assert dict(rig.allocate(name, "all::2").envs) == {"NVIDIA_VISIBLE_DEVICES": "all"}


@pytest.mark.parametrize(
    ("entry", "flag"),
    [(PLUGIN, ""), (PLUGIN, "--fail-on-init-error=true"), (AGENT, "--fail-on-init-error")],
)
def test_without_a_driver_it_exits_with_a_reason(rig: Rig, entry: str, flag: str) -> None:
    with rig.plugin(*[flag] * bool(flag), entry=entry, env=NO_DRIVER) as plugin:
        assert plugin.wait() == 1
        assert "the NVIDIA driver cannot be used" in plugin.output()
        assert "Traceback" not in plugin.output()


@pytest.mark.parametrize(
    ("entry", "flags", "env"),
    [
        (PLUGIN, ["--fail-on-init-error=false"], {}),
        (PLUGIN, [], {"FAIL_ON_INIT_ERROR": "false"}),
        (AGENT, ["--no-fail-on-init-error"], {}),
    ],
)
def test_if_the_settings_say_so_it_waits_for_a_driver_and_handles_sighup_meanwhile(
    rig: Rig, entry: str, flags: list[str], env: dict[str, str]
) -> None:
    rig.node.faults.nvml_init("DRIVER_NOT_LOADED")
    with rig.plugin(*flags, entry=entry, env=env) as plugin:
        plugin.wait_for_code(Code.WAITING_FOR_GPUS, "the NVIDIA driver cannot be used")
        assert rig.kubelet.registrations == 0
        rig.node.faults.nvml_init(None)
        plugin.send(signal.SIGHUP)  # without it, the retry comes after five seconds
        assert set(rig.wait_for_resources(GPU)[GPU]) == {gpu.uuid for gpu in rig.node.gpus()}


def test_a_driver_that_is_loaded_later_is_found_without_a_signal(rig: Rig) -> None:
    rig.node.faults.nvml_init("DRIVER_NOT_LOADED")
    cdi = (f"--cdi-directory={rig.directory / 'cdi'}", f"--driver-root-ctr-path={rig.node.root}")
    flags = ("--fail-on-init-error=false", "--device-list-strategy=cdi-cri")
    with rig.plugin(*flags, *cdi) as plugin:
        plugin.wait_for_code(Code.WAITING_FOR_GPUS)
        rig.node.faults.nvml_init(None)
        rig.kubelet.wait_for(GPU)
