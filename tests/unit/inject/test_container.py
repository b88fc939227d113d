"""What a container receives, to the byte."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.config.settings import ContainerSettings, MemoryMps, MpsCheck, Settings
from gpuslice.inject.container import Injection, container_edits
from gpuslice.inject.edits import ContainerEdits, Hook, Mount, merged
from gpuslice.inject.mps import LimitKey, mps_client
from gpuslice.inject.visible import Host
from gpuslice.mps.daemons import Daemon, daemons_of
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.grant import grant
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import MemoryRule, ReplicaRule, Rules, SharingStrategy
from tests.unit.slicing.strategies import memory_pools

T4 = Gpu("GPU-bb", index=0, minor=1, name="Simulated", memory_mib=15360, compute_capability=(7, 5))
EXTERNAL = Daemon("aliyun.com/gpu-mem", "/root/nvidia-mps", "/root/nvidia-mps")
SLICES = Settings(
    rules=Rules(memory=MemoryRule(limited=True)), memory_mps=MemoryMps("/root/nvidia-mps")
)
MANAGED = Settings(
    rules=Rules(memory=MemoryRule(limited=True, daemon_per_gpu=True)),
    memory_mps=MemoryMps(is_managed=True),
    containers=ContainerSettings(mps_root="/mps-root"),
)
REPLICAS = Settings(
    rules=Rules(replicas=(ReplicaRule(SharingStrategy.MPS, "nvidia.com/gpu", 10),)),
    containers=ContainerSettings(mps_root="/mps-root"),
)


def edits(settings: Settings, *requests: list[str]) -> list[ContainerEdits]:
    """Of the containers of one pod on a node with one T4."""
    [pool] = catalogue([T4], settings.rules).pools
    injection = Injection(settings.containers, Host(), LimitKey.UUID, daemons_of([pool], settings))
    return container_edits([grant(pool, ids) for ids in requests], injection)


def units(*numbers: int) -> list[str]:
    return [f"GPU-bb-_-{number}" for number in numbers]


def test_a_slice_gets_its_gpu_the_gpushare_variables_and_its_limits() -> None:
    assert edits(SLICES, units(0, 1, 2), units(3, 4)) == [
        ContainerEdits(
            env={
                "NVIDIA_VISIBLE_DEVICES": "GPU-bb",
                "ALIYUN_COM_GPU_MEM_IDX": "1",
                "ALIYUN_COM_GPU_MEM_POD": "5",
                "ALIYUN_COM_GPU_MEM_CONTAINER": str(count),
                "ALIYUN_COM_GPU_MEM_DEV": "15",
                "CUDA_VISIBLE_DEVICES": "GPU-bb",
                "CUDA_MPS_PIPE_DIRECTORY": "/root/nvidia-mps",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"GPU-bb={count}{suffix}",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percent,
            },
            mounts=(
                Mount("/root/nvidia-mps", "/root/nvidia-mps", read_only=False),
                Mount("/root/nvidia-mps/control", "/root/nvidia-mps/control_privileged"),
            ),
        )
        for count, suffix, percent in ((3, "072M", "20"), (2, "048M", "13"))
    ]


def test_a_slice_without_mps_is_counted_and_not_limited() -> None:
    [one] = edits(Settings(), units(0))
    assert one.mounts == ()
    assert not any(name.startswith("CUDA_") for name in one.env)
    assert one.env["ALIYUN_COM_GPU_MEM_CONTAINER"] == "1"


def test_replicas_reach_the_daemon_of_their_resource_and_its_shared_memory() -> None:
    [one] = edits(REPLICAS, ["GPU-bb::0", "GPU-bb::1"])
    assert one.env == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-bb",
        "CUDA_VISIBLE_DEVICES": "GPU-bb",
        "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-bb=3072M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20",
    }
    assert one.mounts == (
        Mount("/mps-root/nvidia.com/gpu/pipe", "/mps/nvidia.com/gpu/pipe"),
        Mount(
            "/mps-root/nvidia.com/gpu/pipe/control",
            "/mps/nvidia.com/gpu/pipe/control_privileged",
        ),
        Mount("/mps-root/nvidia.com/gpu/shm", "/dev/shm"),
    )


def test_a_managed_slice_gets_the_pipe_and_the_shared_memory_of_its_gpu() -> None:
    [one] = edits(MANAGED, units(0))
    assert one.env["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/GPU-bb/pipe"
    assert one.mounts == (
        Mount("/mps-root/GPU-bb/pipe", "/mps/GPU-bb/pipe"),
        Mount("/mps-root/GPU-bb/pipe/control", "/mps/GPU-bb/pipe/control_privileged"),
        Mount("/mps-root/GPU-bb/shm", "/dev/shm"),
    )


def test_an_external_daemon_can_share_its_memory() -> None:
    shared = replace(SLICES, memory_mps=MemoryMps("/root/nvidia-mps", shm="/run/shm"))
    [one] = edits(shared, units(0))
    assert one.mounts[-1] == Mount("/run/shm", "/dev/shm")
    [one] = edits(SLICES, units(0))
    assert all(mount.container_path != "/dev/shm" for mount in one.mounts)


@pytest.mark.parametrize(
    "settings", [SLICES, MANAGED, REPLICAS], ids=["slices", "managed", "replicas"]
)
def test_access_to_the_pipe_directory_can_be_set(settings: Settings) -> None:
    ids = ["GPU-bb::0"] if settings is REPLICAS else units(0)
    open_to_root = replace(
        settings, containers=replace(settings.containers, mps_hide_privileged_socket=False)
    )
    [one] = edits(open_to_root, ids)
    assert not any("control" in mount.container_path for mount in one.mounts)
    read_only = replace(settings, containers=replace(settings.containers, mps_pipe_read_only=True))
    [one] = edits(read_only, ids)
    # Sockets can be used on a read-only mount.
    assert [mount.read_only for mount in one.mounts[:2]] == [True, False]


def test_a_socket_that_may_not_exist_is_not_mounted() -> None:
    unchecked = replace(SLICES, memory_mps=MemoryMps("/root/nvidia-mps", MpsCheck.OFF))
    [one] = edits(unchecked, units(0))
    assert one.mounts == (Mount("/root/nvidia-mps", "/root/nvidia-mps"),)


def test_a_whole_gpu_gets_nothing_but_itself() -> None:
    settings = replace(REPLICAS, rules=Rules())
    assert edits(settings, ["GPU-bb"]) == [ContainerEdits({"NVIDIA_VISIBLE_DEVICES": "GPU-bb"})]


def test_each_pool_knows_how_its_daemon_is_checked() -> None:
    [pool] = catalogue([T4], SLICES.rules).pools
    settings = replace(SLICES, memory_mps=MemoryMps("/root/nvidia-mps", MpsCheck.AUTO))
    assert daemons_of([pool], settings) == {
        "aliyun.com/gpu-mem": replace(EXTERNAL, check=MpsCheck.AUTO, hides_privileged_socket=True)
    }


def test_without_a_thread_share_no_percentage_is_set() -> None:
    client = mps_client("GPU-bb", Limits(3072, None), EXTERNAL, LimitKey.UUID)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in client.env


@pytest.mark.parametrize(
    ("driver", "key"),
    [
        ("535.183.01", "0"),
        ("550.54.15", "0"),
        ("570.124.06", "GPU-bb"),
        ("615.71.09", "GPU-bb"),
        ("unknown", "GPU-bb"),
    ],
)
def test_the_memory_limit_names_the_gpu_in_the_form_the_driver_applies(
    driver: str, key: str
) -> None:
    client = mps_client("GPU-bb", Limits(3072, 20), EXTERNAL, LimitKey.for_driver(driver))
    assert client.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{key}=3072M"
    assert client.env["CUDA_VISIBLE_DEVICES"] == "GPU-bb"


@given(memory_pools(), st.data(), st.sampled_from(["535.183.01", "570.124.06", "615.71.09"]))
def test_a_limit_never_names_a_gpu_that_the_process_does_not_see(
    pool: Pool, data: st.DataObject, driver: str
) -> None:
    part = data.draw(st.sampled_from(pool.parts))
    ids = data.draw(st.lists(st.sampled_from(list(part.ids)), min_size=1, unique=True))
    [granted] = grant(pool, ids).parts
    key = LimitKey.for_driver(driver)
    env = mps_client(granted.part.device.uuid, granted.limits, EXTERNAL, key).env
    visible = env["CUDA_VISIBLE_DEVICES"].split(",")
    assert visible == [part.device.uuid]
    [(device, limit)] = [
        entry.split("=") for entry in env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].split(",")
    ]
    assert device in (*visible, *map(str, range(len(visible))))
    assert pool.unit is not None
    assert limit == f"{len(ids) * pool.unit.mib}M"


def test_edits_that_contradict_each_other_are_an_error() -> None:
    one = ContainerEdits({"A": "1"}, (Mount("/a", "/a"),))
    other = ContainerEdits({"B": "2"}, hooks=(Hook("x"),))
    assert merged([one, other]) == ContainerEdits(
        {"A": "1", "B": "2"}, (Mount("/a", "/a"),), hooks=(Hook("x"),)
    )
    with pytest.raises(ValueError, match=r"\['A'\]"):
        merged([one, ContainerEdits({"A": "2"})])
