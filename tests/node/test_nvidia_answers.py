"""What containers get with each strategy, and how requests are rejected."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import AdmissionError, Container, Pod
from gpuslice_sim.node import SimNode

from .conftest import MakeRig
from .rig import ENTRY_POINTS, GPU, PLUGIN, Rig, needs_root

LISTED = "/var/run/nvidia-container-devices"
KIND = "k8s.device-plugin.nvidia.com"
CONTROL = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"]
REPLICAS = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 8}]}}"
ONE_AT_A_TIME = (
    "sharing: {timeSlicing: {failRequestsGreaterThanOne: true, "
    "resources: [{name: gpu, replicas: 8}]}}"
)
IMEX_CHANNEL = "dev/nvidia-caps-imex-channels/channel0"


def plain(answer: api.ContainerAllocateResponse) -> dict[str, object]:
    """Without empty parts, and without the end of the annotation's key, which nothing reads."""
    everything = {
        "envs": dict(answer.envs),
        "mounts": [(m.host_path, m.container_path) for m in answer.mounts],
        "devices": [(d.host_path, d.container_path, d.permissions) for d in answer.devices],
        "annotations": {
            re.sub("_[-0-9a-f]{36}$", "_*", key): value for key, value in answer.annotations.items()
        },
        "cdi": [device.name for device in answer.cdi_devices],
    }
    return {key: value for key, value in everything.items() if value}


@contextmanager
def answering(rig: Rig, *args: str, entry: str = PLUGIN, **env: str) -> Iterator[Rig]:
    cdi = f"--cdi-directory={rig.directory / 'cdi'}"
    root = f"--driver-root-ctr-path={rig.node.root}"
    with rig.plugin(root, cdi, *args, entry=entry, env=env, places={}):
        rig.kubelet.wait_for(GPU)
        yield rig


def first(node: SimNode) -> str:
    return node.gpus()[0].uuid


@needs_root
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_by_default_the_answer_is_one_variable_that_names_the_gpu(rig: Rig, entry: str) -> None:
    with answering(rig, entry=entry):
        one, two = (gpu.uuid for gpu in rig.node.gpus())
        assert plain(rig.allocate(GPU, one)) == {"envs": {"NVIDIA_VISIBLE_DEVICES": one}}
        both = rig.allocate(GPU, two, one)
        assert plain(both) == {"envs": {"NVIDIA_VISIBLE_DEVICES": f"{two},{one}"}}


@needs_root
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_time_sliced_replicas_of_a_gpu_are_one_gpu_to_the_container(rig: Rig, entry: str) -> None:
    with answering(rig, rig.config(REPLICAS), entry=entry):
        gpu = first(rig.node)
        answer = rig.allocate(GPU, f"{gpu}::3", f"{gpu}::5")
        assert plain(answer) == {"envs": {"NVIDIA_VISIBLE_DEVICES": gpu}}


@needs_root
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_device_nodes_are_passed_from_the_device_root(rig: Rig, entry: str) -> None:
    root = "/run/nvidia/driver"
    with answering(
        rig, "--device-id-strategy=index", "--pass-device-specs", f"--dev-root={root}", entry=entry
    ):
        assert plain(rig.allocate(GPU, first(rig.node))) == {
            "envs": {"NVIDIA_VISIBLE_DEVICES": "0"},
            "devices": [(f"{root}{p}", p, "rw") for p in [*CONTROL, "/dev/nvidia0"]],
        }


@needs_root
def test_a_device_node_of_two_replicas_is_passed_once(rig: Rig) -> None:
    with answering(rig, rig.config(REPLICAS), PASS_DEVICE_SPECS="true"):
        gpu = first(rig.node)
        answer = rig.allocate(GPU, f"{gpu}::0", f"{gpu}::1")
        assert [d.container_path for d in answer.devices] == [*CONTROL, "/dev/nvidia0"]


@needs_root
def test_the_nodes_of_a_mig_device_are_its_gpu_and_both_its_capabilities(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("a100x2-mig-single")
    with answering(rig, "--mig-strategy=single", "--pass-device-specs"):
        gpu = rig.node.gpus()[1]
        mig = gpu.mig[2]
        answer = rig.allocate(GPU, mig.uuid)
        assert dict(answer.envs) == {"NVIDIA_VISIBLE_DEVICES": mig.uuid}
        minors = dict(
            line.rsplit(" ", 1)
            for line in (rig.node.root / "proc/driver/nvidia-caps/mig-minors")
            .read_text()
            .splitlines()
        )
        places = (
            f"gpu{gpu.minor}/gi{mig.gi}/access",
            f"gpu{gpu.minor}/gi{mig.gi}/ci{mig.ci}/access",
        )
        assert [d.container_path for d in answer.devices] == [
            *CONTROL,
            f"/dev/nvidia{gpu.minor}",
            *(f"/dev/nvidia-caps/nvidia-cap{minors[place]}" for place in places),
        ]


@needs_root
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_volume_mounts_list_devices_and_imex_channels(rig: Rig, entry: str) -> None:
    channel = rig.node.root / IMEX_CHANNEL
    channel.parent.mkdir(parents=True)
    make_char_device(channel)
    with answering(
        rig, "--device-list-strategy=volume-mounts", "--imex-channel-ids=0", entry=entry
    ):
        gpu = first(rig.node)
        assert plain(rig.allocate(GPU, gpu)) == {
            "envs": {"NVIDIA_VISIBLE_DEVICES": LISTED},
            "mounts": [("/dev/null", f"{LISTED}/{gpu}"), ("/dev/null", f"{LISTED}/imex/0")],
        }


def make_char_device(path: Path) -> None:
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))


@needs_root
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_cdi_devices_are_named_by_annotation_and_described_in_a_file(rig: Rig, entry: str) -> None:
    with answering(rig, "--device-list-strategy=cdi-annotations", "--gdrcopy-enabled", entry=entry):
        gpu = first(rig.node)
        assert plain(rig.allocate(GPU, gpu)) == {
            "annotations": {"cdi.k8s.io/nvidia-device-plugin_*": f"{KIND}/gpu={gpu}"},
            "envs": {"NVIDIA_GDRCOPY": "enabled"},
        }
        spec = json.loads((rig.directory / "cdi" / f"{KIND}-gpu.json").read_text())
        assert spec["kind"] == f"{KIND}/gpu"
        assert {device["name"] for device in spec["devices"]} == {
            gpu.uuid for gpu in rig.node.gpus()
        }


@needs_root
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_cdi_over_cri_names_devices_and_no_device_nodes(rig: Rig, entry: str) -> None:
    with answering(rig, "--device-list-strategy=cdi-cri", "--pass-device-specs", entry=entry):
        gpu = first(rig.node)
        assert plain(rig.allocate(GPU, gpu)) == {"cdi": [f"{KIND}/gpu={gpu}"]}


@pytest.mark.parametrize("strategy", ["cdi-annotations", "envvar,cdi-cri"])
def test_cdi_without_a_driver_is_an_error(rig: Rig, strategy: str) -> None:
    with rig.plugin(
        f"--device-list-strategy={strategy}", env={"LD_LIBRARY_PATH": "/nowhere"}
    ) as plugin:
        assert plugin.wait() == 1
        assert "the NVIDIA driver cannot be used" in plugin.output()
        assert "Traceback" not in plugin.output()
    assert rig.kubelet.registrations == 0


def test_a_request_for_several_replicas_is_rejected_if_the_settings_allow_one(rig: Rig) -> None:
    with rig.plugin(rig.config(ONE_AT_A_TIME)):
        rig.kubelet.wait_for(GPU)
        with pytest.raises(AdmissionError) as refused:
            rig.kubelet.admit(Pod("p", [Container("main", {GPU: 2})]))
        assert (
            'invalid allocation request for "nvidia.com/gpu": invalid request: '
            "maximum request size for shared resources is 1; found 2"
        ) in str(refused.value)
        assert rig.kubelet.admit(Pod("q", [Container("main", {GPU: 1})]))


def test_an_unknown_device_is_rejected_in_nvidias_words(rig: Rig) -> None:
    with rig.plugin() as plugin:
        rig.kubelet.wait_for(GPU)
        with pytest.raises(grpc.RpcError) as refused:
            rig.allocate(GPU, "GPU-unknown")
        assert "invalid request: unknown device: GPU-unknown" in str(refused.value)
        assert rig.allocate(GPU, first(rig.node))
        assert plugin.logged(Code.UNKNOWN_DEVICE) == 1


def test_a_device_that_is_unhealthy_is_not_allocated(rig: Rig) -> None:
    """The kubelet may not know yet. A container that restarts is not allocated again."""
    with rig.plugin():
        rig.kubelet.wait_for(GPU)
        sick, well = (gpu.uuid for gpu in rig.node.gpus())
        rig.node.faults.xid(0, 79)
        rig.wait_for_healthy(GPU, {well})
        with pytest.raises(grpc.RpcError, match=f"{Code.XID}: "):
            rig.allocate(GPU, sick)
        assert rig.allocate(GPU, well).envs["NVIDIA_VISIBLE_DEVICES"] == well
