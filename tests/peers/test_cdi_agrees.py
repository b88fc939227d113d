"""Our CDI specification and the one of NVIDIA's device plugin describe a node alike.

Accepted differences, each undone below before the two are compared:

* links by PCI path: NVIDIA's name the driver root in front of /dev/dri/by-path, so that the link
  is made where no program in the container looks; ours are made in /dev/dri/by-path.
* links of graphics libraries: NVIDIA's have a hook of their own, ours make all links at once.
* groups of device nodes that not everyone may open: this release of NVIDIA's plugin means to add
  containers to them and, by a mistake that later releases correct, never does. Ours does.
* IMEX channels: ours state the numbers of the node, NVIDIA's leave them to the runtime.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuslice.agent.cdi_files import CdiFiles, CdiNames
from gpuslice.config.settings import CdiSettings, ContainerSettings, DeviceId, DeviceList
from gpuslice.slicing.device import Device, parts, whole
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice_sim.driver_root import pci_address
from gpuslice_sim.node import SimGpu, SimNode

from . import device_nodes
from .build import Peers
from .conftest import MakeNode, StartPlugin

Spec = dict[str, Any]

VENDOR = "k8s.device-plugin.nvidia.com"
LIBRARIES = f"usr/lib/{os.uname().machine}-linux-gnu"
NODES = {
    "gdrdrv": (240, 0),
    "nvidia-fs0": (241, 0),
    "nvidia-fs1": (241, 1),
    "infiniband/uverbs0": (231, 192),
    "infiniband/rdma_cm": (10, 58),
    "nvidia-caps-imex-channels/channel0": (234, 0),
}


@pytest.mark.parametrize(
    ("profile", "strategy"),
    [
        ("t4x2", "none"),
        ("mixed", "none"),
        ("h100x8", "none"),
        ("a100x2-mig-single", "single"),
        ("a100x2-mig-mixed", "mixed"),
    ],
)
def test_devices_env_mounts_and_hooks_agree(
    make_node: MakeNode, start_plugin: StartPlugin, scratch: Path, profile: str, strategy: str
) -> None:
    node = make_node(profile)
    theirs = their_specs(node, start_plugin, scratch, f"--mig-strategy={strategy}")
    ours, _ = our_specs(node, scratch, ContainerSettings())
    assert ours.keys() == theirs.keys() == {"gpu"}
    assert ours["gpu"]["cdiVersion"] == theirs["gpu"]["cdiVersion"]
    assert_alike(node, ours["gpu"], theirs["gpu"])


@pytest.mark.parametrize("driver", [535, 570, 590, 615])
def test_everything_that_can_lie_around_a_driver_is_found_alike(
    make_node: MakeNode, start_plugin: StartPlugin, scratch: Path, driver: int
) -> None:
    node = make_node("a100x2-mig-mixed", driver=driver)
    furnish(node)
    flag = "enable-explicit-driver-libraries"
    theirs = their_specs(
        node,
        start_plugin,
        scratch,
        "--mig-strategy=mixed",
        "--gds-enabled",
        "--mofed-enabled",
        "--gdrcopy-enabled",
        "--imex-channel-ids=0",
        f"--cdi-feature-flags={flag}",
    )
    containers = ContainerSettings(gds=True, mofed=True, gdrcopy=True, imex_channels=(0,))
    ours, names = our_specs(node, scratch, containers, flag)
    assert ours.keys() == theirs.keys() == {"gpu", "imex-channel", "gdrcopy", "gds", "mofed"}
    for name in ours:
        assert_alike(node, ours[name], theirs[name])
    assert ours["gpu"]["devices"][0]["containerEdits"]["additionalGids"] == [44]
    assert names.cdi_extras == (
        f"{VENDOR}/imex-channel=0",
        f"{VENDOR}/gdrcopy=all",
        f"{VENDOR}/gds=all",
        f"{VENDOR}/mofed=all",
    )


def test_devices_are_named_by_index_alike(
    make_node: MakeNode, start_plugin: StartPlugin, scratch: Path
) -> None:
    node = make_node("a100x2-mig-mixed")
    theirs = their_specs(
        node, start_plugin, scratch, "--mig-strategy=mixed", "--device-id-strategy=index"
    )
    ours, names = our_specs(node, scratch, ContainerSettings(device_id=DeviceId.INDEX))
    assert_alike(node, ours["gpu"], theirs["gpu"])
    assert set(names.cdi_names.values()) == {
        f"{VENDOR}/gpu={name}" for name in ("0:0", "0:1", "0:2", "0:3", "1")
    }


@pytest.mark.parametrize("path", ["/usr/bin/nvidia-cdi-hook", "/opt/bin/nvidia-ctk"])
def test_the_hook_program_is_called_alike(
    make_node: MakeNode, start_plugin: StartPlugin, scratch: Path, path: str
) -> None:
    node = make_node("t4x2")
    theirs = their_specs(node, start_plugin, scratch, f"--nvidia-cdi-hook-path={path}")
    ours, _ = our_specs(node, scratch, ContainerSettings(), hook_path=path)
    assert_alike(node, ours["gpu"], theirs["gpu"])


@pytest.mark.parametrize("ids", list(DeviceId))
def test_nvidias_tool_reads_what_we_write(
    make_node: MakeNode, peers: Peers, scratch: Path, ids: DeviceId
) -> None:
    node = make_node("a100x2-mig-mixed")
    furnish(node)
    containers = ContainerSettings(
        device_id=ids, gds=True, mofed=True, gdrcopy=True, imex_channels=(0,)
    )
    _, names = our_specs(node, scratch, containers)
    done = subprocess.run(
        [peers.ctk, "cdi", "list", f"--spec-dir={scratch / 'ours'}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    assert set(done.stdout.split()) == {*names.cdi_names.values(), *names.cdi_extras}


def their_specs(
    node: SimNode, start_plugin: StartPlugin, scratch: Path, *flags: str
) -> dict[str, Spec]:
    directory = scratch / "theirs"
    directory.mkdir()
    plugin = start_plugin(
        node,
        "--device-list-strategy=cdi-cri",
        f"--driver-root={node.root}",
        *flags,
        binds={"/run/cdi": directory},
    )
    plugin.kubelet.wait_until(
        lambda: bool(plugin.kubelet.resources()), "the plugin to register", 60
    )
    return read_specs(directory)


def our_specs(
    node: SimNode,
    scratch: Path,
    containers: ContainerSettings,
    *flags: str,
    hook_path: str = CdiSettings().hook_path,
) -> tuple[dict[str, Spec], CdiNames]:
    directory = scratch / "ours"
    settings = CdiSettings(
        container_driver_root=str(node.root),
        directory=str(directory),
        feature_flags=frozenset(flags),
        hook_path=hook_path,
    )
    chosen = ContainerSettings(
        device_list=frozenset({DeviceList.CDI_CRI}),
        device_id=containers.device_id,
        gds=containers.gds,
        mofed=containers.mofed,
        gdrcopy=containers.gdrcopy,
        imex_channels=containers.imex_channels,
        driver_root=str(node.root),
        dev_root=str(node.root),
    )
    gpus = [as_gpu(node, gpu) for gpu in node.gpus()]
    files = CdiFiles(settings, host_directories=(), own_root=node.root)
    version = node.state.values()["driver.version"]
    names = files.refresh(gpus, [d for gpu in gpus for d in devices_of(gpu)], version, chosen)
    return read_specs(directory), names


def read_specs(directory: Path) -> dict[str, Spec]:
    prefix = f"{VENDOR}-"
    return {
        path.stem.removeprefix(prefix): json.loads(path.read_text())
        for path in directory.iterdir()
        if path.name.startswith(prefix)
    }


def devices_of(gpu: Gpu) -> tuple[Device, ...]:
    return parts(gpu) if gpu.mig else (whole(gpu),)


def as_gpu(node: SimNode, gpu: SimGpu) -> Gpu:
    return Gpu(
        gpu.uuid,
        gpu.index,
        gpu.minor,
        gpu.name,
        memory_mib=0,
        pci_bus_id=pci_address(gpu.pci),
        nodes=tuple(device_nodes.of_gpu(gpu)),
        mig_enabled=bool(gpu.mig),
        mig=tuple(
            MigDevice(
                uuid=mig.uuid,
                index=number,
                gpu_instance=mig.gi,
                compute_instance=mig.ci,
                profile=mig.profile.name,
                memory_mib=0,
                nodes=tuple(device_nodes.of_mig(node, gpu, mig))[1:],
            )
            for number, mig in enumerate(gpu.mig)
        ),
    )


def assert_alike(node: SimNode, ours: Spec, theirs: Spec) -> None:
    assert ours["kind"] == theirs["kind"]
    numbers = "imex" not in ours["kind"]
    assert plain(node, ours, numbers) == plain(node, theirs, numbers)


def plain(node: SimNode, spec: Spec, numbers: bool) -> Mapping[str, object]:
    """A specification without the accepted differences and without order that means nothing."""
    edits = {device["name"]: device["containerEdits"] for device in spec["devices"]}
    assert list(edits) == sorted(edits)
    edits["all devices"] = spec.get("containerEdits", {})
    return {name: plain_edits(node, edit, numbers) for name, edit in edits.items()}


def plain_edits(node: SimNode, edits: Spec, numbers: bool) -> Mapping[str, object]:
    assert edits.keys() <= {"env", "deviceNodes", "hooks", "mounts", "additionalGids"}
    nodes = edits.get("deviceNodes", [])
    if not numbers:
        nodes = [{key: entry[key] for key in ("path", "hostPath")} for entry in nodes]
    links, others = [], []
    for hook in edits.get("hooks", []):
        words = [word.replace(f"::{node.root}/dev/dri", "::/dev/dri") for word in hook["args"]]
        assert hook.keys() == {"hookName", "path", "args", "env"}
        call = (hook["hookName"], hook["path"], hook["env"])
        if "create-symlinks" in words:
            first = words.index("--link")
            links += [(*call, words[:first], link) for link in words[first + 1 :: 2]]
        else:
            others.append((*call, words))
    return {
        "env": edits.get("env", []),
        "nodes": nodes,
        "links": sorted(links, key=str),
        "hooks": others,
        "mounts": sorted(edits.get("mounts", []), key=str),
    }


def furnish(node: SimNode) -> None:
    """Puts everything in place that a driver may bring on a machine with a display."""
    version = node.state.values()["driver.version"]
    library = (node.root / LIBRARIES / f"libnvidia-ml.so.{version}").read_bytes()
    for name in (
        f"libGLX_nvidia.so.{version}",
        f"libnvidia-opticalflow.so.{version}",
        f"libnvidia-allocator.so.{version}",
        f"libnvidia-vulkan-producer.so.{version}",
        f"vdpau/libvdpau_nvidia.so.{version}",
        "libnvidia-egl-gbm.so.1.1.2",
        "libEGL.so.1.1.0",
    ):
        put(node, f"{LIBRARIES}/{name}", library)
    (node.root / LIBRARIES / "libEGL.so").symlink_to("libEGL.so.1.1.0")
    for name in (
        "usr/lib/xorg/modules/drivers/nvidia_drv.so",
        f"usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.{version}",
        f"lib/firmware/nvidia/{version}/gsp_ga10x.bin",
        f"lib/firmware/nvidia/{version}/gsp_tu10x.bin",
        "usr/bin/nvidia-debugdump",
        "usr/bin/nvidia-persistenced",
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "usr/share/nvidia/nvoptix.bin",
        "etc/vulkan/icd.d/nvidia_icd.json",
        "run/nvidia-persistenced/socket",
        "var/run/nvidia-fabricmanager/socket",
        "run/udev/control",
        "etc/cufile.json",
        # A directory, which neither of us takes for the socket of a daemon.
        "tmp/nvidia-mps/control",
    ):
        put(node, name)
    for name, (major, minor) in NODES.items():
        make_device(node.root / "dev" / name, major, minor, 0o666)
    for gpu in node.gpus():
        furnish_display(node, gpu)


def furnish_display(node: SimNode, gpu: SimGpu) -> None:
    address = pci_address(gpu.pci)
    by_path = node.root / "dev" / "dri" / "by-path"
    by_path.mkdir(parents=True, exist_ok=True)
    for kind, name, minor in (
        ("card", f"card{gpu.index + 1}", gpu.index + 1),
        ("render", f"renderD{128 + gpu.index}", 128 + gpu.index),
    ):
        (node.root / "sys" / "bus" / "pci" / "devices" / address / "drm" / name).mkdir(parents=True)
        path = node.root / "dev" / "dri" / name
        make_device(path, 226, minor, 0o660)
        os.chown(path, 0, 44)
        (by_path / f"pci-{address}-{kind}").symlink_to(f"../{name}")


def make_device(path: Path, major: int, minor: int, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
    path.chmod(mode)


def put(node: SimNode, path: str, content: bytes = b"") -> None:
    target = node.root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o755)
