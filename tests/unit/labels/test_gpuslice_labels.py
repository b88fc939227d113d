"""Labels in addition to NVIDIA's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuslice.slicing.rules import (
    MemoryRule,
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


def test_every_model_has_labels() -> None:
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


def test_every_resource_has_labels_with_its_name() -> None:
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


def test_memory_units_have_labels_with_their_size_and_limits() -> None:
    memory = MemoryRule(unit=MemoryUnit(512), reserve_mib=256, limited=True)
    found = labels(several(T4, 2), Rules(memory=memory))
    assert found["gpu.sharing-strategy"] == "memory"
    assert found["gpu.replicas"] == "0"
    assert found["gpu.product"] == "Tesla-T4"
    assert found["mps.capable"] == "false"
    assert own(found, "resource") == {
        "aliyun.com_gpu-mem.advertise": "one-gpu",
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
    found = labels([T4], Rules(memory=MemoryRule()))
    assert own(found, "memory")["limits"] == "none"
    assert own(found, "memory")["unit"] == "GiB"


def test_rules_that_do_not_fit_the_node_advertise_nothing() -> None:
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


def test_gpus_that_are_selected_for_memory_and_skipped_are_not_advertised() -> None:
    old = replace(T4, uuid="GPU-p4", index=1, minor=1, name="Tesla P4", compute_capability=(6, 1))
    small = replace(T4, uuid="GPU-small", index=2, minor=2, memory_mib=512)
    limited = labels([T4, old, small], Rules(memory=MemoryRule(limited=True)))
    assert own(limited, "resource")["aliyun.com_gpu-mem.devices"] == "1"
    assert own(limited, "resource")["aliyun.com_gpu-mem.capacity"] == "15"
    assert own(limited, "gpu")["Tesla-P4.count"] == "1"
    assert own(limited, "gpu")["Tesla-P4.replicas"] == "0"
    assert own(limited, "gpu")["Tesla-P4.sharing"] == "none"
    counted = labels([T4, old, small], Rules(memory=MemoryRule()))
    assert own(counted, "resource")["aliyun.com_gpu-mem.devices"] == "2"
    assert own(counted, "gpu")["Tesla-P4.sharing"] == "memory"


@pytest.mark.parametrize("capability", [(8, 0), (6, 1)], ids=["sliced", "skipped"])
def test_gpus_that_are_selected_for_memory_do_not_affect_the_mig_layout(
    capability: tuple[int, int],
) -> None:
    first = replace(A100, uuid="GPU-x", compute_capability=capability)
    gpus = [first, cut(replace(A100, index=1), SMALL, SMALL)]
    memory = MemoryRule(Selection(references=("0",)), limited=True)
    found = labels(gpus, Rules(mig_strategy=MigStrategy.SINGLE, memory=memory))
    assert found["gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    assert found["gpu.count"] == "2"
