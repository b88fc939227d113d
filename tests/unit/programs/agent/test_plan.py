"""Settings and hardware -> what the agent advertises and injects."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.config.settings import (
    CdiSettings,
    ContainerSettings,
    DeviceList,
    MemoryMps,
    Settings,
)
from gpuslice.gpus.inventory import Inventory
from gpuslice.node.driver import Hardware
from gpuslice.node.errors import ProgramError
from gpuslice.programs.agent.plan import AgentPlan, all_devices, check_directories, make_plan
from gpuslice.slicing.errors import NothingToAdvertise, SlicingError
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.rules import (
    MemoryRule,
    MigStrategy,
    ReplicaRule,
    Rules,
    Selection,
    SharingStrategy,
)

MIG = Gpu(
    "GPU-a",
    0,
    0,
    "A100",
    40960,
    mig_capable=True,
    mig_enabled=True,
    mig=(MigDevice("MIG-a", 0, 7, 0, "1g.5gb", 4864),),
)
WHOLE = Gpu("GPU-b", 1, 1, "A100", 40960, (8, 0), mig_capable=True)
SECOND = MemoryRule(Selection(references=("1",)), resource="example.com/mem")


def inventory(*gpus: Gpu) -> Inventory:
    return Inventory("570.1", gpus)


def plan(settings: Settings, *gpus: Gpu) -> AgentPlan:
    return make_plan(settings, Hardware(inventory(*(gpus or (MIG, WHOLE)))))


@pytest.mark.parametrize(
    ("strategy", "uuids"),
    [
        (MigStrategy.NONE, ["GPU-a", "GPU-b"]),
        (MigStrategy.MIXED, ["MIG-a", "GPU-b"]),
        (MigStrategy.SINGLE, ["MIG-a", "GPU-b"]),
    ],
)
def test_a_gpu_counts_as_its_mig_devices_if_these_are_allocated(
    strategy: MigStrategy, uuids: list[str]
) -> None:
    assert [device.uuid for device in all_devices(inventory(MIG, WHOLE), strategy)] == uuids


def test_memory_units_and_devices_are_advertised_side_by_side() -> None:
    made = plan(Settings(rules=Rules(MigStrategy.MIXED, memory=SECOND)))
    assert {pool.resource: pool.sharing.value for pool in made.pools} == {
        "nvidia.com/mig-1g.5gb": "none",
        "example.com/mem": "memory",
    }
    assert [notice.code for notice in made.notices] == [Code.NOT_LIMITED]
    assert made.daemons == {}


def test_one_name_for_memory_units_and_devices_is_refused() -> None:
    memory = MemoryRule(SECOND.devices, resource="nvidia.com/mig-1g.5gb")
    with pytest.raises(SlicingError, match="is the name of both memory units and GPUs"):
        plan(Settings(rules=Rules(MigStrategy.MIXED, memory=memory)))


def test_a_gpu_that_cannot_be_sliced_does_not_affect_the_others() -> None:
    small = MemoryRule(SECOND.devices, reserve_mib=40960)
    made = plan(Settings(rules=Rules(MigStrategy.MIXED, memory=small)))
    assert [pool.resource for pool in made.pools] == ["nvidia.com/mig-1g.5gb"]
    assert [notice.code for notice in made.notices] == [Code.GPU_SKIPPED]
    with pytest.raises(NothingToAdvertise, match="smaller than one unit"):
        plan(Settings(rules=Rules(memory=MemoryRule(reserve_mib=40960))), WHOLE)


def test_each_daemon_is_known_by_the_pool_that_it_limits() -> None:
    settings = Settings(
        rules=Rules(
            memory=MemoryRule(SECOND.devices, limited=True),
            replicas=(
                ReplicaRule(
                    SharingStrategy.MPS,
                    "nvidia.com/gpu",
                    4,
                    devices=Selection(references=("2",)),
                ),
            ),
        ),
        memory_mps=MemoryMps("/run/nvidia-mps"),
        containers=ContainerSettings(mps_root="/run/nvidia/mps"),
    )
    third = Gpu("GPU-c", 2, 2, "A100", 40960, (8, 0))
    made = plan(settings, WHOLE, third)
    assert {name: daemon.pipe for name, daemon in made.daemons.items()} == {
        "aliyun.com/gpu-mem": "/run/nvidia-mps",
        "nvidia.com/gpu": "/mps/nvidia.com/gpu/pipe",
    }


def test_without_cdi_no_specification_is_written(tmp_path: Path) -> None:
    cdi = CdiSettings(directory=str(tmp_path / "cdi"))
    assert plan(Settings(cdi=cdi)).faults == ()
    assert not (tmp_path / "cdi").exists()


def test_a_driver_without_libraries_is_an_error_if_cdi_needs_them(tmp_path: Path) -> None:
    settings = Settings(
        cdi=CdiSettings(directory=str(tmp_path / "cdi"), container_driver_root=str(tmp_path)),
        containers=ContainerSettings(device_list=frozenset({DeviceList.CDI_CRI})),
    )
    with pytest.raises(ProgramError, match="has no libraries"):
        plan(settings)


def test_nested_pools_need_a_directory_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = str(tmp_path / "file")
    for nested in (True, False):
        made = plan(Settings(rules=Rules(nested=nested), nested_directory=directory), WHOLE)
        if nested:
            with pytest.raises(ProgramError, match="nested-dir"):
                check_directories(made)
        else:
            check_directories(made)


def test_lists_that_containers_write_themselves_need_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(
        rules=Rules(nested=True), nested_directory=str(tmp_path / "file"), nested_file=None
    )
    check_directories(plan(settings, WHOLE))
