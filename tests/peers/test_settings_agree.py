"""Flags, variables and files have the same effect on NVIDIA's device plugin 0.19.0 and on ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.codes import Code

from .agreement.compare import (
    allocations_agree,
    lists_agree,
    registrations_agree,
)
from .agreement.configs import GPU, write
from .agreement.full_node import furnish
from .agreement.requests import agreed, all_agree
from .conftest import MakeNode, StartPair

CDI = "k8s.device-plugin.nvidia.com"


@pytest.mark.parametrize(
    ("flags", "env", "file"),
    [
        (["--device-id-strategy=index"], {}, {}),
        (["--device-id-strategy", "index"], {"DEVICE_ID_STRATEGY": "uuid"}, {}),
        ([], {"DEVICE_ID_STRATEGY": "index"}, {"deviceIDStrategy": "uuid"}),
        ([], {}, {"deviceIDStrategy": "index"}),
        (["-pass-device-specs"], {"DEVICE_LIST_STRATEGY": "volume-mounts"}, {}),
        (["--pass-device-specs=false"], {"PASS_DEVICE_SPECS": "true"}, {}),
        ([], {"PASS_DEVICE_SPECS": "true"}, {"passDeviceSpecs": False}),
        ([], {}, {"passDeviceSpecs": True, "deviceListStrategy": ["envvar", "volume-mounts"]}),
        (["--device-list-strategy=envvar,volume-mounts"], {}, {"deviceListStrategy": "cdi-cri"}),
        (["--device-list-strategy=envvar", "--device-list-strategy=cdi-cri"], {}, {}),
        ([], {"DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri"}, {}),
        (["--cdi-annotation-prefix=example.com/"], {}, {"deviceListStrategy": "cdi-annotations"}),
        ([], {}, {"deviceListStrategy": ["cdi-annotations"], "cdiAnnotationPrefix": "a.b/"}),
        (["--nvidia-dev-root=/somewhere"], {"PASS_DEVICE_SPECS": "1"}, {}),
        (["--nvidia-driver-root=/run/nvidia/driver", "--pass-device-specs"], {}, {}),
        ([], {"NVIDIA_DRIVER_ROOT": "/a", "NVIDIA_DEV_ROOT": "/b", "PASS_DEVICE_SPECS": "t"}, {}),
    ],
)
def test_flags_variables_and_file_have_the_same_effect(
    make_node: MakeNode,
    start_pair: StartPair,
    scratch: Path,
    flags: list[str],
    env: dict[str, str],
    file: dict[str, object],
) -> None:
    config = write(scratch, {"version": "v1", "flags": {"plugin": file}})
    pair = start_pair(make_node("t4x2"), f"--config-file={config}", *flags, env=env)
    pair.by_index = True
    pair.wait_for(GPU)
    all_agree(pair)


@pytest.mark.parametrize(
    "text",
    ["", "---\n", "{}", '{\n\t"version": "v1"\n}', "version: ''", "sharing:\n", "version: v1\n"],
)
def test_a_file_without_settings_has_no_effect(
    make_node: MakeNode, start_pair: StartPair, scratch: Path, text: str
) -> None:
    config = scratch / "config.yaml"
    config.write_text(text)
    pair = start_pair(make_node("t4x2"), env={"CONFIG_FILE": str(config)})
    pair.wait_for(GPU)
    registrations_agree(pair)
    lists_agree(pair)
    allocations_agree(pair, GPU, [pair.node.gpu(0).uuid])


def test_neither_registers_without_a_kubelet_socket(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    pair = start_pair(make_node("t4x2"), "--kubelet-socket=")
    pair.theirs.process.wait_for_output("Ignoring the following XIDs")  # after it would have
    pair.ours.process.wait_for_code(Code.ADVERTISED, "resource=nvidia.com/gpu", times=2)
    registrations_agree(pair)


@pytest.mark.parametrize("way", ["nvml", "tegra"])
def test_both_accept_a_device_discovery_strategy(
    make_node: MakeNode, start_pair: StartPair, way: str
) -> None:
    pair = start_pair(make_node("t4x2"), f"--device-discovery-strategy={way}")
    pair.wait_for(GPU)
    all_agree(pair)


@pytest.mark.parametrize("switch", ["gds", "mofed", "gdrcopy"])
@pytest.mark.parametrize("strategies", ["envvar", "cdi-annotations,cdi-cri"])
def test_containers_get_the_same_for_gds_mofed_and_gdrcopy(
    make_node: MakeNode, start_pair: StartPair, switch: str, strategies: str
) -> None:
    node = make_node("t4x2")
    furnish(node)
    pair = start_pair(
        node,
        f"--{switch}-enabled",
        f"--device-list-strategy={strategies}",
        f"--driver-root={node.root}",
    )
    pair.wait_for(GPU)
    [answer] = agreed(pair, GPU, [node.gpu(1).uuid])
    assert answer.env[f"NVIDIA_{switch.upper()}"] == "enabled"
    if strategies != "envvar":
        assert answer.cdi == [f"{CDI}/gpu={node.gpu(1).uuid}", f"{CDI}/{switch}=all"]


@pytest.mark.parametrize("strategies", ["envvar", "volume-mounts", "envvar,cdi-cri", "cdi-cri"])
@pytest.mark.parametrize("present", [True, False], ids=["present", "absent"])
def test_containers_get_the_same_imex_channels(
    make_node: MakeNode, start_pair: StartPair, strategies: str, present: bool
) -> None:
    node = make_node("t4x2")
    if present:
        furnish(node)
    pair = start_pair(
        node,
        "--imex-channel-ids=0",
        "--pass-device-specs",
        f"--device-list-strategy={strategies}",
        f"--driver-root={node.root}",
    )
    pair.wait_for(GPU)
    all_agree(pair)
