"""CDI specifications, as a runtime reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.cdi.document import HookProgram, Spec, Style, device_name, document
from gpuslice.cdi.specs import GpuNodes, HostRoots, Mode, gpu_spec, imex_spec, mode_spec
from gpuslice.gpus.device_nodes import CharDevice, DrmNodes, Link
from gpuslice.gpus.driver_files import ConfigFile, DriverFiles, Library

LIB = "/usr/lib64"
FILES = DriverFiles(
    version="570.124.06",
    library_directory=LIB,
    libraries=(
        Library(f"{LIB}/libcuda.so.570.124.06", (Link("libcuda.so.1", f"{LIB}/libcuda.so"),)),
        Library(f"{LIB}/vdpau/libvdpau_nvidia.so.570.124.06"),
    ),
    modules=(Library("/usr/lib/xorg/modules/drivers/nvidia_drv.so"),),
    configs=(ConfigFile("/opt/share/x.json", "/usr/share/x.json"),),
    programs=("/usr/bin/nvidia-smi",),
    firmware=("/lib/firmware/nvidia/570.124.06/gsp_ga10x.bin",),
    sockets=("/run/nvidia-persistenced/socket",),
)
ROOT = HostRoots()
CONTROL = [CharDevice("/dev/nvidiactl", 195, 255), CharDevice("/dev/nvidia-uvm", 510, 0)]
GPU_A = GpuNodes((CharDevice("/dev/nvidia0", 195, 0),))
DRAWING = GpuNodes(
    (CharDevice("/dev/nvidia1", 195, 1),),
    DrmNodes(
        (CharDevice("/dev/dri/card1", 226, 1, 0o660, 44),),
        (Link("../card1", "/dev/dri/by-path/pci-0000:3b:00.0-card"),),
    ),
)
READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]
HOOK = {
    "hookName": "createContainer",
    "path": "/usr/bin/nvidia-ctk",
    "env": ["NVIDIA_CTK_DEBUG=false"],
}


def edits(spec: Spec, style: Style | None = None) -> dict[str, dict[str, object]]:
    """Of each device by name, and of all under an empty name."""
    written = document(spec, style or Style())
    devices = written["devices"]
    assert isinstance(devices, list)
    common = written.get("containerEdits", {})
    assert isinstance(common, dict)
    return {"": common} | {device["name"]: device["containerEdits"] for device in devices}


def test_a_specification_in_full() -> None:
    assert document(gpu_spec({"GPU-a": GPU_A}, CONTROL, FILES, ROOT), Style()) == {
        "cdiVersion": "0.3.0",
        "kind": "k8s.device-plugin.nvidia.com/gpu",
        "devices": [
            {
                "name": "GPU-a",
                "containerEdits": {
                    "deviceNodes": [
                        {
                            "path": "/dev/nvidia0",
                            "major": 195,
                            "fileMode": 0o666,
                            "permissions": "rwm",
                        }
                    ]
                },
            }
        ],
        "containerEdits": {
            "env": ["NVIDIA_CTK_LIBCUDA_DIR=/usr/lib64", "NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [
                {
                    "path": "/dev/nvidia-uvm",
                    "major": 510,
                    "fileMode": 0o666,
                    "permissions": "rwm",
                },
                {
                    "path": "/dev/nvidiactl",
                    "major": 195,
                    "minor": 255,
                    "fileMode": 0o666,
                    "permissions": "rwm",
                },
            ],
            "hooks": [
                HOOK | {"args": ["nvidia-ctk", "hook", *words]}
                for words in (
                    ["create-symlinks", "--link", "libcuda.so.1::/usr/lib64/libcuda.so"],
                    ["enable-cuda-compat", "--host-driver-version=570.124.06"],
                    ["update-ldcache", "--folder", LIB, "--folder", f"{LIB}/vdpau"],
                    ["disable-device-node-modification"],
                )
            ],
            "mounts": [
                {"hostPath": host, "containerPath": path, "options": options}
                for host, path, options in (
                    (
                        "/run/nvidia-persistenced/socket",
                        "/run/nvidia-persistenced/socket",
                        ["nosuid", "nodev", "rbind", "rprivate", "noexec"],
                    ),
                    ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi", READ_ONLY),
                    (
                        f"{LIB}/libcuda.so.570.124.06",
                        f"{LIB}/libcuda.so.570.124.06",
                        READ_ONLY,
                    ),
                    ("/opt/share/x.json", "/usr/share/x.json", READ_ONLY),
                    (
                        f"{LIB}/vdpau/libvdpau_nvidia.so.570.124.06",
                        f"{LIB}/vdpau/libvdpau_nvidia.so.570.124.06",
                        READ_ONLY,
                    ),
                    (
                        "/lib/firmware/nvidia/570.124.06/gsp_ga10x.bin",
                        "/lib/firmware/nvidia/570.124.06/gsp_ga10x.bin",
                        READ_ONLY,
                    ),
                    (
                        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
                        "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
                        READ_ONLY,
                    ),
                )
            ],
        },
    }


def test_host_paths_follow_the_roots_and_container_paths_do_not() -> None:
    roots = HostRoots("/run/nvidia/driver", "/host")
    written = edits(gpu_spec({"GPU-a": GPU_A}, CONTROL, FILES, roots))
    assert written["GPU-a"]["deviceNodes"] == [
        {
            "path": "/dev/nvidia0",
            "hostPath": "/host/dev/nvidia0",
            "major": 195,
            "fileMode": 0o666,
            "permissions": "rwm",
        }
    ]
    mounts = written[""]["mounts"]
    assert isinstance(mounts, list)
    assert {
        "hostPath": "/run/nvidia/driver/usr/bin/nvidia-smi",
        "containerPath": "/usr/bin/nvidia-smi",
        "options": READ_ONLY,
    } in mounts


def test_display_nodes_bring_their_group_and_their_stable_names() -> None:
    written = edits(gpu_spec({"GPU-b": DRAWING}, CONTROL, FILES, ROOT))["GPU-b"]
    assert written["additionalGids"] == [44]
    [hook] = written["hooks"] if isinstance(written["hooks"], list) else []
    link = "../card1::/dev/dri/by-path/pci-0000:3b:00.0-card"
    assert hook["args"][2:] == ["create-symlinks", "--link", link]
    without = edits(
        gpu_spec({"GPU-b": DRAWING}, CONTROL, FILES, ROOT), Style(additional_gids=False)
    )
    assert "additionalGids" not in without["GPU-b"]


def hook_words(style: Style) -> list[list[str]]:
    hooks = edits(gpu_spec({"GPU-a": GPU_A}, CONTROL, FILES, ROOT), style)[""].get("hooks", [])
    assert isinstance(hooks, list)
    return [hook["args"] for hook in hooks]


def test_the_newer_hook_program_takes_hooks_as_its_commands() -> None:
    words = hook_words(Style(hooks=HookProgram("/opt/nvidia-cdi-hook")))
    assert words[-1] == ["nvidia-cdi-hook", "disable-device-node-modification"]


def test_hooks_can_be_disabled_one_by_one_or_all() -> None:
    some = hook_words(Style(hooks=HookProgram(disabled=frozenset({"enable-cuda-compat"}))))
    assert [words[2] for words in some] == [
        "create-symlinks",
        "update-ldcache",
        "disable-device-node-modification",
    ]
    assert hook_words(Style(hooks=HookProgram(disabled=frozenset({"all"})))) == []


@pytest.mark.parametrize(
    ("spec", "style", "version"),
    [
        (gpu_spec({"GPU-a": GPU_A}, CONTROL, FILES, ROOT), Style(), "0.3.0"),
        (gpu_spec({"0:1": GPU_A}, CONTROL, FILES, ROOT), Style(), "0.5.0"),
        (gpu_spec({"GPU-a": GPU_A}, CONTROL, FILES, HostRoots(dev="/host")), Style(), "0.5.0"),
        (gpu_spec({"GPU-a": GPU_A}, CONTROL, FILES, HostRoots("/host")), Style(), "0.3.0"),
        (gpu_spec({"GPU-b": DRAWING}, CONTROL, FILES, ROOT), Style(), "0.7.0"),
        (gpu_spec({"GPU-b": DRAWING}, [], FILES, ROOT), Style(additional_gids=False), "0.3.0"),
        (imex_spec({0: CharDevice("/dev/x", 1, 2)}, ROOT), Style(), "0.5.0"),
    ],
)
def test_the_version_is_the_oldest_that_can_say_it(spec: Spec, style: Style, version: str) -> None:
    assert document(spec, style)["cdiVersion"] == version


@pytest.mark.parametrize("mode", ["gdrcopy", "gds", "mofed"])
def test_an_extra_mode_is_one_device_with_its_nodes_and_files(mode: Mode) -> None:
    spec = mode_spec(mode, [CharDevice("/dev/gdrdrv", 240, 0)], ["/etc/cufile.json"], ROOT)
    assert spec.qualified("all") == f"k8s.device-plugin.nvidia.com/{mode}=all"
    written = edits(spec)
    assert written[""] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    assert written["all"].keys() == {"deviceNodes", "mounts"}


def test_an_extra_mode_without_nodes_describes_nothing() -> None:
    assert not mode_spec("gds", [], ["/etc/cufile.json"], ROOT).devices


@given(st.permutations(["MIG-c", "GPU-a", "GPU-b"]), st.permutations(CONTROL))
def test_equal_nodes_give_equal_specifications(names: list[str], control: list[CharDevice]) -> None:
    spec = gpu_spec(dict.fromkeys(names, GPU_A), control, FILES, ROOT)
    expected = gpu_spec(dict.fromkeys(sorted(names), GPU_A), CONTROL, FILES, ROOT)
    assert document(spec, Style()) == document(expected, Style())


def test_names_of_old_mig_devices_are_made_fit_for_cdi() -> None:
    assert device_name("MIG-GPU-a/3/0") == "MIG-GPU-a:3:0"
    assert device_name("0:1") == "0:1"
