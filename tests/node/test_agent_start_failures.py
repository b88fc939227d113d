"""An agent that cannot start: it exits with a reason, or waits if the settings allow it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice_sim.node import SimNode

from .conftest import MakeRig
from .rig import RESOURCE, Rig


def without_driver(node: SimNode) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(node.directory / "nothing")}


def test_without_a_driver_the_agent_exits_with_a_reason(rig: Rig) -> None:
    with rig.agent(env=without_driver(rig.node)) as agent:
        assert agent.wait() == 1
        assert "the NVIDIA driver cannot be used" in agent.output()
        assert "Traceback" not in agent.output()


def test_without_a_driver_the_agent_waits_if_the_settings_allow_it_and_can_be_stopped(
    rig: Rig,
) -> None:
    with rig.agent("--no-fail-on-init-error", env=without_driver(rig.node)) as agent:
        agent.wait_for_code(Code.WAITING_FOR_GPUS)
        assert agent.stop() == 0


def test_a_driver_that_comes_up_later_is_found(rig: Rig) -> None:
    rig.node.faults.nvml_init("DRIVER_NOT_LOADED")
    with rig.agent("--no-fail-on-init-error") as agent:
        agent.wait_for_code(Code.WAITING_FOR_GPUS, "Driver Not Loaded")
        rig.node.faults.nvml_init(None)
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_for(RESOURCE)


def test_settings_that_change_while_the_agent_waits_for_gpus_are_applied(
    rig: Rig, short_path: Path
) -> None:
    config = short_path / "config.yaml"
    config.write_text("flags: {failOnInitError: false}")
    rig.node.faults.nvml_init("DRIVER_NOT_LOADED")
    with rig.agent("--config-file", str(config)) as agent:
        agent.wait_for_code(Code.WAITING_FOR_GPUS)
        config.write_text("sharing: {memory: {unit: 512MiB}}\nflags: {failOnInitError: false}")
        rig.node.faults.nvml_init(None)
        agent.send(signal.SIGHUP)
        rig.kubelet.wait_for(RESOURCE)
        rig.kubelet.wait_until(lambda: rig.kubelet.capacity(RESOURCE) == 60, "60 units")


def test_the_error_of_a_node_without_gpus_differs_from_that_of_a_node_without_a_driver(
    rig: Rig,
) -> None:
    for gpu in rig.node.gpus():
        rig.node.faults.unplug(gpu.uuid)
    with rig.agent() as agent:
        assert agent.wait() == 1
        assert "this node has no GPU to advertise (NVML finds none)" in agent.output()


@pytest.mark.parametrize(
    ("flag", "value", "because"),
    [
        ("--memory-unit", "6GB", "memory-unit: '6GB' is not valid"),
        ("--mps-pipe", "relative", "mps-pipe: 'relative' is not valid"),
        ("--config-file", "/nowhere.yaml", "config-file: '/nowhere.yaml' is not valid"),
    ],
)
def test_an_invalid_flag_ends_the_agent_with_a_message(
    rig: Rig, flag: str, value: str, because: str
) -> None:
    with rig.agent(flag, value) as agent:
        assert agent.wait() == 1
        assert because in agent.output()
        assert "Traceback" not in agent.output()


def test_a_socket_directory_with_too_long_a_name_is_rejected(make_rig: MakeRig) -> None:
    rig = make_rig()
    deep = rig.directory / ("x" * 90) / "kubelet.sock"
    with rig.agent("--kubelet-socket", str(deep)) as agent:
        assert agent.wait() == 1
        assert "bytes, and 107 is the maximum" in agent.output()


def test_a_socket_that_cannot_be_created_ends_the_agent_with_a_reason(rig: Rig) -> None:
    rig.socket.mkdir()
    with rig.agent() as agent:
        assert agent.wait() == 1
        assert f"the socket {rig.socket} cannot be created" in agent.output()
        assert "Traceback" not in agent.output()
