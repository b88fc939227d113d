"""What a container receives that is a node of a nested cluster."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.config.settings import ContainerSettings, DeviceId, DeviceList
from gpuslice.inject.edits import ContainerEdits, Mount
from gpuslice.inject.nested import NestedLists, gpu_env, nested
from gpuslice.inject.visible import Host
from gpuslice.slicing.allocated_devices import allocated_gpus
from gpuslice.slicing.allocated_list import parse_allocated_devices
from gpuslice.slicing.device import Device, whole
from gpuslice.slicing.gpu import Gpu
from tests.unit.slicing.strategies import nodes

GPUS = [Device(f"GPU-{n}", str(i), f"GPU-{n}", (f"/dev/nvidia{i}",)) for i, n in enumerate("abcd")]
A, B, C, D = GPUS
HOST = Host(
    control_nodes=("/dev/nvidiactl",),
    cdi_names={gpu.uuid: f"nvidia.com/gpu={gpu.uuid}" for gpu in GPUS},
)


FILE = "/gpuslice/gpu.env"


def answer_for(
    settings: ContainerSettings, *devices: Device, file: str | None = FILE
) -> tuple[ContainerEdits, list[str]]:
    kept: list[str] = []

    def keep(text: str) -> str:
        kept.append(text)
        return "/var/lib/gpuslice/nested/x.env"

    return nested(devices, GPUS, settings, HOST, NestedLists(file, keep)), kept


def test_the_container_sees_all_gpus_and_is_told_its_own_by_variable_and_file() -> None:
    answer, kept = answer_for(ContainerSettings(), C, A)
    assert answer == ContainerEdits(
        env={
            "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c,GPU-d",
            "NVIDIA_ALLOCATED_DEVICES": "GPU-c,GPU-a",
            "NVIDIA_ALLOCATED_DEVICES_FILE": FILE,
        },
        mounts=(Mount("/var/lib/gpuslice/nested/x.env", FILE, read_only=True),),
    )
    assert kept == ["NVIDIA_ALLOCATED_DEVICES=GPU-c,GPU-a\n"]


def test_a_container_that_writes_its_file_itself_gets_variables_and_no_mount() -> None:
    answer, kept = answer_for(ContainerSettings(), C, A, file=None)
    assert answer == ContainerEdits(
        env={
            "NVIDIA_VISIBLE_DEVICES": "GPU-a,GPU-b,GPU-c,GPU-d",
            "NVIDIA_ALLOCATED_DEVICES": "GPU-c,GPU-a",
        }
    )
    assert kept == []


def test_the_file_can_be_mounted_elsewhere() -> None:
    answer, _ = answer_for(ContainerSettings(), A, file="/gpu.env")
    assert [mount.container_path for mount in answer.mounts] == ["/gpu.env"]
    assert answer.env["NVIDIA_ALLOCATED_DEVICES_FILE"] == "/gpu.env"


def test_variables_follow_the_id_strategy_and_the_file_names_uuids() -> None:
    answer, kept = answer_for(ContainerSettings(device_id=DeviceId.INDEX), C)
    assert answer.env == {
        "NVIDIA_VISIBLE_DEVICES": "0,1,2,3",
        "NVIDIA_ALLOCATED_DEVICES": "2",
        "NVIDIA_ALLOCATED_DEVICES_FILE": FILE,
    }
    assert kept == ["NVIDIA_ALLOCATED_DEVICES=GPU-c\n"]


def test_mounts_and_device_nodes_are_those_of_the_allotted_gpus() -> None:
    settings = ContainerSettings(
        device_list=frozenset({DeviceList.VOLUME_MOUNTS}), pass_device_specs=True
    )
    answer, _ = answer_for(settings, B, B)
    assert [mount.container_path for mount in answer.mounts] == [
        "/var/run/nvidia-container-devices/GPU-b",
        FILE,
    ]
    assert [node.container_path for node in answer.devices] == ["/dev/nvidiactl", "/dev/nvidia1"]
    assert answer.env["NVIDIA_ALLOCATED_DEVICES"] == "GPU-b"


def test_cdi_names_all_gpus() -> None:
    settings = ContainerSettings(device_list=frozenset({DeviceList.CDI_CRI}))
    answer, _ = answer_for(settings, B, file=None)
    assert answer.cdi_devices == tuple(f"nvidia.com/gpu=GPU-{name}" for name in "abcd")
    assert answer.env == {"NVIDIA_ALLOCATED_DEVICES": "GPU-b"}


def test_an_allotted_device_is_seen_even_if_nobody_listed_it() -> None:
    other = replace(A, uuid="GPU-e", index="4")
    answer, _ = answer_for(ContainerSettings(), other)
    assert answer.env["NVIDIA_VISIBLE_DEVICES"] == "GPU-a,GPU-b,GPU-c,GPU-d,GPU-e"


@given(nodes(), st.data())
def test_the_inner_agent_keeps_exactly_what_the_outer_one_allotted(
    gpus: list[Gpu], data: st.DataObject
) -> None:
    own = data.draw(st.lists(st.sampled_from(gpus), min_size=1, unique=True))
    text = gpu_env(whole(gpu).uuid for gpu in own)
    kept = allocated_gpus(gpus, parse_allocated_devices(text))
    assert set(kept) == set(own)
    assert list(kept) == [gpu for gpu in gpus if gpu in own]
