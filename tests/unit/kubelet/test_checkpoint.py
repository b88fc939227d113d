"""Reads the kubelet's checkpoint, whatever it contains."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice.kubelet.checkpoint import CheckpointEntry, read_checkpoint
from gpuslice.slicing.holders import Holder

ANSWER = api.ContainerAllocateResponse(
    envs={"A": "1"}, cdi_devices=[api.CDIDevice(name="gpuslice.io/container=c1")]
)


def entry(ids: object) -> dict[str, object]:
    return {
        "PodUID": "uid",
        "ContainerName": "main",
        "ResourceName": "aliyun.com/gpu-mem",
        "DeviceIDs": ids,
        "AllocResp": base64.b64encode(ANSWER.SerializeToString()).decode(),
    }


def read(directory: Path, text: str) -> tuple[CheckpointEntry, ...]:
    (directory / "kubelet_internal_checkpoint").write_text(text)
    return read_checkpoint(directory / "kubelet.sock")


@pytest.mark.parametrize("ids", [{"0": ["a"], "1": ["b"]}, {"-1": ["a", "b"]}, ["a", "b"]])
def test_devices_are_found_on_any_numa_node_and_in_the_old_format(
    tmp_path: Path, ids: object
) -> None:
    [found] = read(tmp_path, json.dumps({"Data": {"PodDeviceEntries": [entry(ids)]}}))
    assert found.resource == "aliyun.com/gpu-mem"
    assert found.holder == Holder("uid", "main", frozenset({"a", "b"}))
    assert found.cdi_devices == ("gpuslice.io/container=c1",)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"Data": null}',
        '{"Data": {"PodDeviceEntries": null}}',
        '{"Data": {"PodDeviceEntries": [{}]}}',
        '{"Data": {"PodDeviceEntries": [3]}}',
        json.dumps({"Data": {"PodDeviceEntries": [entry(["a"]) | {"AllocResp": "x"}]}}),
        json.dumps({"Data": {"PodDeviceEntries": [entry(["a"]) | {"AllocResp": "/////w=="}]}}),
        json.dumps({"Data": {"PodDeviceEntries": [entry(None)]}}),
    ],
)
def test_a_checkpoint_of_another_format_has_no_entries(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == ()


def test_a_missing_checkpoint_has_no_entries(tmp_path: Path) -> None:
    assert read_checkpoint(tmp_path / "kubelet.sock") == ()
