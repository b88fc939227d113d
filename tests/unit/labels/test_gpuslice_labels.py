"""What the labels tell beyond NVIDIA's."""

from __future__ import annotations

from dataclasses import replace

from gpuslice.config.settings import MemorySettings
from gpuslice.slicing.rules import (
    ALL,
    MigStrategy,
    NameRule,
    ReplicaRule,
    Rules,
    Selection,
    SharingStrategy,
)
from gpuslice.slicing.units import MemoryUnit

from .nodes import A100, SMALL, T4, cut, labels, several


def own(found: dict[str, str], part: str) -> dict[str, str]:
    prefix = f"gpuslice.io/{part}."
    return {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}


def test_every_model_is_told() -> None:
    found = labels([*several(T4, 2), cut(several(A100, 1, 2)[0], SMALL)])
    assert own(found, "gpu") == {
        "NVIDIA-A100-SXM4-40GB.compute": "8.0",
        "NVIDIA-A100-SXM4-40GB.count": "1",
        "NVIDIA-A100-SXM4-40GB.family": "ampere",
        "NVIDIA-A100-SXM4-40GB.memory": "40960",
        "NVIDIA-A100-SXM4-40GB.replicas": "0",
        "NVIDIA-A100-SXM4-40GB.sharing": "none",
        "Tesla-T4.compute": "7.5",
        "Tesla-T4.count": "2",
        "Tesla-T4.family": "turing",
        "Tesla-T4.memory": "15360",
        "Tesla-T4.replicas": "1",
        "Tesla-T4.sharing": "none",
    }


def test_every_resource_is_told_by_its_own_name() -> None:
    rules = Rules(
        gpus=(NameRule("*A100*", "example.com/big"), NameRule("*", "nvidia.com/gpu")),
        replicas=(
            ReplicaRule(
                SharingStrategy.TIME_SLICING,
                "nvidia.com/gpu",
                4,
                "nvidia.com/gpu.shared",
                Selection(references=("1",)),
            ),
        ),
    )
    found = labels([*several(T4, 2), *several(A100, 1, 2)], rules)
    assert own(found, "resource") == {
        "example.com_big.capacity": "1",
        "example.com_big.devices": "1",
        "example.com_big.sharing": "none",
        "nvidia.com_gpu.capacity": "1",
        "nvidia.com_gpu.devices": "1",
        "nvidia.com_gpu.sharing": "none",
        "nvidia.com_gpu.shared.capacity": "4",
        "nvidia.com_gpu.shared.devices": "1",
        "nvidia.com_gpu.shared.sharing": "time-slicing",
    }


def test_memory_units_are_told_with_what_holds_containers_to_them() -> None:
    memory = MemorySettings(unit=MemoryUnit(512), reserve_mib=256, mps_pipe="/run/mps")
    found = labels(several(T4, 2), Rules(memory=ALL), memory=memory)
    assert found["gpu.sharing-strategy"] == "memory"
    assert found["gpu.replicas"] == "0"
    assert found["gpu.product"] == "Tesla-T4"
    assert found["mps.capable"] == "false"
    assert own(found, "resource") == {
        "aliyun.com_gpu-mem.capacity": "58",
        "aliyun.com_gpu-mem.devices": "2",
        "aliyun.com_gpu-mem.sharing": "memory",
    }
    assert own(found, "memory") == {
        "largest": "29",
        "limits": "mps",
        "unit": "512MiB",
        "unit-mib": "512",
    }


def test_memory_units_without_mps_have_no_limits() -> None:
    found = labels([T4], Rules(memory=ALL))
    assert own(found, "memory")["limits"] == "none"
    assert own(found, "memory")["unit"] == "GiB"


def test_rules_that_do_not_fit_the_node_offer_nothing() -> None:
    rules = Rules(
        replicas=tuple(
            ReplicaRule(strategy, "nvidia.com/gpu", 2, devices=Selection(references=(index,)))
            for strategy, index in [(SharingStrategy.MPS, "0"), (SharingStrategy.TIME_SLICING, "1")]
        )
    )
    found = labels(several(T4, 2), rules)
    assert not own(found, "resource")
    assert found["gpu.replicas"] == "0"
    assert found["mps.capable"] == "false"


def test_memory_that_the_agent_would_not_offer_is_not_counted() -> None:
    old = replace(T4, uuid="GPU-p4", index=1, minor=1, name="Tesla P4", compute_capability=(6, 1))
    small = replace(T4, uuid="GPU-small", index=2, minor=2, memory_mib=512)
    limited = labels(
        [T4, old, small], Rules(memory=ALL), memory=MemorySettings(mps_pipe="/run/mps")
    )
    assert own(limited, "resource")["aliyun.com_gpu-mem.devices"] == "1"
    assert own(limited, "resource")["aliyun.com_gpu-mem.capacity"] == "15"
    counted = labels([T4, old, small], Rules(memory=ALL))
    assert own(counted, "resource")["aliyun.com_gpu-mem.devices"] == "2"


def test_gpus_cut_by_memory_do_not_spoil_the_layout_of_the_others() -> None:
    gpus = [replace(A100, uuid="GPU-x"), cut(replace(A100, index=1), SMALL, SMALL)]
    rules = Rules(mig_strategy=MigStrategy.SINGLE, memory=Selection(references=("0",)))
    found = labels(gpus, rules)
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    assert found["gpu.count"] == "2"
