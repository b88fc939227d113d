"""Which devices a container is told it has, in every way a runtime can be told."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.config.settings import ContainerSettings, DeviceId, DeviceList
from gpuslice.inject.edits import ContainerEdits, DeviceNode, Mount, merged
from gpuslice.inject.mps import LimitKey, mps_client
from gpuslice.inject.visible import Host, visible
from gpuslice.mps.daemons import Daemon
from gpuslice.slicing.device import Device
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.limits import Limits

GPU_A = Device("GPU-a", "0", "GPU-a", ("/dev/nvidia0",), memory_mib=40960, numa_node=0)
GPU_B = Device("GPU-b", "1", "GPU-b", ("/dev/nvidia1",))
MIG_C = Device(
    "MIG-c",
    "0:1",
    "GPU-a",
    ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"),
)
OURS = "k8s.device-plugin.nvidia.com"
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
HOST = Host(
    control_nodes=CONTROL,
    cdi_names={d.uuid: f"{OURS}/gpu={d.uuid}" for d in (GPU_A, GPU_B, MIG_C)},
)
DAEMON = Daemon(
    "nvidia.com/gpu.shared",
    "/mps/nvidia.com/gpu.shared/pipe",
    "/run/nvidia/mps/nvidia.com/gpu.shared/pipe",
    "/run/nvidia/mps/nvidia.com/gpu.shared/shm",
)
CDI_KINDS = {DeviceList.CDI_ANNOTATIONS, DeviceList.CDI_CRI}


def settings(*device_list: DeviceList, **changes: object) -> ContainerSettings:
    chosen = ContainerSettings(device_list=frozenset(device_list or {DeviceList.ENVVAR}))
    return replace(chosen, **changes)  # type: ignore[arg-type]


def test_a_gpu_is_listed_in_the_variable() -> None:
    answer = visible([GPU_A], settings(), HOST)
    assert answer == ContainerEdits({"NVIDIA_VISIBLE_DEVICES": "GPU-a"})


def test_two_replicas_of_a_gpu_list_it_once() -> None:
    answer = visible([GPU_A, GPU_A], settings(), HOST)
    assert answer == ContainerEdits({"NVIDIA_VISIBLE_DEVICES": "GPU-a"})


def test_indices_and_device_nodes_of_a_driver_in_a_container() -> None:
    chosen = settings(
        device_id=DeviceId.INDEX,
        pass_device_specs=True,
        driver_root="/run/nvidia/driver",
        dev_root="/run/nvidia/driver",
    )
    assert visible([GPU_A], chosen, HOST) == ContainerEdits(
        env={"NVIDIA_VISIBLE_DEVICES": "0"},
        devices=tuple(
            DeviceNode(f"/run/nvidia/driver{path}", path) for path in (*CONTROL, "/dev/nvidia0")
        ),
    )


def test_a_list_by_mounts_names_imex_channels_too() -> None:
    host = replace(HOST, imex_channels=(0,))
    place = "/var/run/nvidia-container-devices"
    assert visible([GPU_A], settings(DeviceList.VOLUME_MOUNTS), host) == ContainerEdits(
        env={"NVIDIA_VISIBLE_DEVICES": place},
        mounts=(
            Mount("/dev/null", f"{place}/GPU-a"),
            Mount("/dev/null", f"{place}/imex/0"),
        ),
    )


def test_cdi_annotations_name_the_gpu_and_gpudirect_storage() -> None:
    host = replace(HOST, cdi_extras=(f"{OURS}/gds=all",))
    answer = visible([GPU_A], settings(DeviceList.CDI_ANNOTATIONS, gds=True), host)
    [(key, value)] = answer.annotations.items()
    prefix, _, suffix = key.partition("_")
    assert prefix == "cdi.k8s.io/nvidia-device-plugin"
    assert len(suffix) == 36
    assert value == f"{OURS}/gpu=GPU-a,{OURS}/gds=all"
    assert answer == ContainerEdits({"NVIDIA_GDS": "enabled"}, annotations={key: value})


def test_cdi_through_the_kubelet_and_an_mps_replica_under_another_name() -> None:
    answer = merged(
        [
            visible([GPU_A], settings(DeviceList.CDI_CRI), HOST),
            mps_client("GPU-a", Limits(4096, 10), DAEMON, LimitKey.UUID),
        ]
    )
    pipe = "/mps/nvidia.com/gpu.shared/pipe"
    assert answer == ContainerEdits(
        env={
            "CUDA_MPS_PIPE_DIRECTORY": pipe,
            # What NVIDIA leaves to the daemon, which counts it for all containers alike.
            "CUDA_VISIBLE_DEVICES": "GPU-a",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-a=4096M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10",
        },
        mounts=(
            Mount("/run/nvidia/mps/nvidia.com/gpu.shared/pipe", pipe),
            Mount("/run/nvidia/mps/nvidia.com/gpu.shared/shm", "/dev/shm"),
        ),
        cdi_devices=(f"{OURS}/gpu=GPU-a",),
    )


def test_gpus_are_listed_in_the_order_of_the_request() -> None:
    for order in ([GPU_A, GPU_B], [GPU_B, GPU_A]):
        by_index = visible(order, settings(device_id=DeviceId.INDEX), HOST)
        assert by_index.env["NVIDIA_VISIBLE_DEVICES"] == ",".join(d.index for d in order)


def test_no_device_node_is_passed_twice() -> None:
    chosen = settings(pass_device_specs=True)
    paths = [d.container_path for d in visible([MIG_C, GPU_A, MIG_C], chosen, HOST).devices]
    assert paths == [*CONTROL, *MIG_C.nodes]


def test_imex_channels_are_in_the_variable_and_among_the_nodes() -> None:
    host = Host(imex_channels=(0,))
    answer = visible([GPU_A], settings(pass_device_specs=True), host)
    assert answer.env["NVIDIA_IMEX_CHANNELS"] == "0"
    assert [d.container_path for d in answer.devices] == [
        "/dev/nvidia0",
        "/dev/nvidia-caps-imex-channels/channel0",
    ]


def test_where_both_lists_are_chosen_the_mounts_count() -> None:
    answer = visible([GPU_A], settings(DeviceList.ENVVAR, DeviceList.VOLUME_MOUNTS), HOST)
    assert answer.env == {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}


def test_cdi_alone_passes_no_device_nodes() -> None:
    chosen = settings(*CDI_KINDS, pass_device_specs=True, gdrcopy=True, mofed=True)
    answer = visible([GPU_A], chosen, HOST)
    assert answer.env == {"NVIDIA_GDRCOPY": "enabled", "NVIDIA_MOFED": "enabled"}
    assert not answer.mounts
    assert not answer.devices
    assert answer.cdi_devices == (f"{OURS}/gpu=GPU-a",)
    assert list(answer.annotations.values()) == [f"{OURS}/gpu=GPU-a"]


def test_a_device_that_cdi_does_not_describe_is_refused() -> None:
    host = replace(HOST, cdi_names={"GPU-a": "nvidia.com/gpu=GPU-a"})
    assert visible([GPU_A], settings(DeviceList.CDI_CRI), host).cdi_devices == (
        "nvidia.com/gpu=GPU-a",
    )
    with pytest.raises(GrantRefused, match=r"GPU-b has no CDI name .* envvar"):
        visible([GPU_A, GPU_B], settings(DeviceList.CDI_CRI), host)


def test_the_prefix_of_annotations_can_be_chosen() -> None:
    chosen = settings(DeviceList.CDI_ANNOTATIONS, cdi_annotation_prefix="gpus.example/")
    [key] = visible([GPU_A], chosen, HOST).annotations
    assert key.startswith("gpus.example/nvidia-device-plugin_")


def test_different_devices_get_different_annotations() -> None:
    chosen = settings(DeviceList.CDI_ANNOTATIONS)
    [one], [other] = (visible([device], chosen, HOST).annotations for device in (GPU_A, GPU_B))
    assert one != other


EVERY_LIST = [
    frozenset(chosen) for size in range(1, 5) for chosen in combinations(list(DeviceList), size)
]


@given(
    st.sampled_from(EVERY_LIST),
    st.sampled_from(list(DeviceId)),
    st.booleans(),
    st.lists(st.sampled_from([GPU_A, GPU_B, MIG_C]), min_size=1, max_size=6),
)
def test_every_combination_tells_each_device_once_and_the_same_each_time(
    chosen: frozenset[DeviceList], ids: DeviceId, nodes: bool, devices: list[Device]
) -> None:
    asked = settings(*chosen, device_id=ids, pass_device_specs=nodes)
    answer = visible(devices, asked, HOST)
    assert answer == visible(devices, asked, HOST)
    once = list(dict.fromkeys(devices))
    names = [device.uuid if ids is DeviceId.UUID else device.index for device in once]
    qualified = [HOST.cdi_names[device.uuid] for device in once]
    assert list(answer.cdi_devices) == (qualified if DeviceList.CDI_CRI in chosen else [])
    assert list(answer.annotations.values()) == (
        [",".join(qualified)] if DeviceList.CDI_ANNOTATIONS in chosen else []
    )
    mounted = [mount.container_path.rpartition("/")[2] for mount in answer.mounts]
    assert mounted == (names if DeviceList.VOLUME_MOUNTS in chosen else [])
    if chosen <= CDI_KINDS:
        assert not answer.env
        assert not answer.devices
    elif DeviceList.VOLUME_MOUNTS not in chosen:
        assert answer.env == {"NVIDIA_VISIBLE_DEVICES": ",".join(names)}
    assert bool(answer.devices) == (nodes and not chosen <= CDI_KINDS)
