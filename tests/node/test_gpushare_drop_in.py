"""The command line of gpushare, on a node where only the image was changed."""

from __future__ import annotations

import subprocess

import pytest

from gpuslice.codes import Code
from gpuslice_sim.mps.launch import MpsDaemon
from tests.surroundings import free_address

from .rig import BIN, RESOURCE, Rig, eventually
from .test_node_config import get


def test_the_command_of_a_daemonset_with_mps_serves_slices(rig: Rig) -> None:
    args = ["-logtostderr", "--v=5", "--memory-unit=GiB", f"--mps-pipe={rig.pipe}", "--mps"]
    with (
        MpsDaemon(rig.node, rig.pipe, rig.directory / "log"),
        rig.gpushare(*args, "--health-check"),
    ):
        endpoint = rig.wait_for_limits()
        assert endpoint.socket.name == "aliyungpushare.sock"
        envs = dict(rig.admit(3).response.envs)
        uuid = rig.node.gpus()[0].uuid
        assert envs == {
            "NVIDIA_VISIBLE_DEVICES": uuid,
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_POD": "3",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
            "ALIYUN_COM_GPU_MEM_DEV": "15",
            "CUDA_VISIBLE_DEVICES": uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(rig.pipe),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{uuid}=3072M",
        }
        rig.node.faults.xid(1, 79)
        second = rig.node.gpus()[1].uuid
        rig.kubelet.wait_until(lambda: rig.healthy_units(second) == 0, "GPU 1 unhealthy")


def test_without_mps_only_the_gpushare_variables_are_set(rig: Rig) -> None:
    with rig.gpushare("-logtostderr", "--v=5", "--memory-unit=GiB", "--timeout", "10"):
        rig.kubelet.wait_for(RESOURCE)
        response = rig.admit(2).response
        assert not [key for key in response.envs if key.startswith("CUDA")]
        assert not response.mounts


def test_mib_units(rig: Rig) -> None:
    with rig.gpushare("-memory-unit", "MiB"):
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.capacity(RESOURCE) == 2 * 15360
        assert rig.admit(100).response.envs["ALIYUN_COM_GPU_MEM_DEV"] == "15360"


def test_a_manifest_that_does_not_mount_the_pipe_directory_still_works(rig: Rig) -> None:
    with rig.gpushare(f"--mps-pipe={rig.directory}/not-mounted"):
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.allocatable(RESOURCE) == 30


def test_a_node_without_gpus_is_waited_for(rig: Rig) -> None:
    rig.node.faults.nvml_init("DRIVER_NOT_LOADED")
    with rig.gpushare("-logtostderr") as plugin:
        plugin.wait_for_code(Code.WAITING_FOR_GPUS)
        rig.node.faults.nvml_init(None)
        rig.kubelet.wait_for(RESOURCE)


@pytest.mark.parametrize(
    ("args", "code", "expected"),
    [
        (["--help"], 0, "--mps-pipe VALUE"),
        (["--mem-unit=GiB"], 2, "flag provided but not defined: -mem-unit"),
        (["--mps-pipe=relative"], 1, "use an absolute path"),
    ],
)
def test_the_command_line_behaves_like_gos(args: list[str], code: int, expected: str) -> None:
    done = subprocess.run(
        [BIN / "gpushare-device-plugin-v2", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == code
    assert expected in done.stdout + done.stderr


def test_gpushares_plugin_answers_probes(rig: Rig) -> None:
    address = free_address()
    with rig.gpushare(env={"GPUSLICE_METRICS_ADDRESS": address}):
        rig.kubelet.wait_for(RESOURCE)
        eventually(lambda: get(address, "/readyz")[0] == 200, "ready")
        assert get(address, "/healthz") == (200, "ok\n")
