"""Which GPUs the driver offers, and what each one is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

import gpuslice_sim
from gpuslice_sim.errors import SimError
from gpuslice_sim.profiles import profiles

from .conftest import Ask, MakeNode

T4 = ("Tesla T4", 15360, 40, "7.5")
V100 = ("Tesla V100-SXM2-32GB", 32768, 80, "7.0")
A10 = ("NVIDIA A10", 23028, 72, "8.6")
A100_40 = ("NVIDIA A100-SXM4-40GB", 40960, 108, "8.0")
A100_80 = ("NVIDIA A100-SXM4-80GB", 81920, 108, "8.0")
H100 = ("NVIDIA H100 80GB HBM3", 81559, 132, "9.0")
L40S = ("NVIDIA L40S", 46068, 142, "8.9")
B200 = ("NVIDIA B200", 183359, 148, "10.0")
NODES = {
    "t4x2": [T4] * 2,
    "v100x4": [V100] * 4,
    "a10x4": [A10] * 4,
    "a100-40x8": [A100_40] * 8,
    "a100-80x8": [A100_80] * 8,
    "h100x8": [H100] * 8,
    "h100x16": [H100] * 16,
    "l40sx4": [L40S] * 4,
    "b200x8": [B200] * 8,
    "mixed": [T4, A100_40, T4, L40S],
    "a100x2-mig-single": [A100_40] * 2,
    "a100x2-mig-mixed": [A100_40] * 2,
}
CORES_PER_SM = {"7.0": 64, "7.5": 64, "8.0": 64, "8.6": 128, "8.9": 128, "9.0": 128, "10.0": 128}

DESCRIBE = """
answer = []
for h in handles():
    major, minor = nvmlDeviceGetCudaComputeCapability(h)
    pci = nvmlDeviceGetPciInfo(h)
    answer.append({
        "uuid": nvmlDeviceGetUUID(h), "name": nvmlDeviceGetName(h),
        "mib": nvmlDeviceGetMemoryInfo(h).total >> 20, "cores": nvmlDeviceGetNumGpuCores(h),
        "cc": f"{major}.{minor}", "minor": nvmlDeviceGetMinorNumber(h),
        "pci": pci.busId, "pci_legacy": pci.busIdLegacy, "bus": pci.bus,
        "vendor": pci.pciDeviceId & 0xFFFF, "index": nvmlDeviceGetIndex(h),
    })
"""


def test_there_is_an_expectation_for_every_profile() -> None:
    assert set(NODES) == set(profiles())


@pytest.mark.parametrize("profile", NODES)
def test_every_profile_enumerates_its_gpus(profile: str, make_node: MakeNode, ask: Ask) -> None:
    node = make_node(profile)
    found = ask(node, DESCRIBE)
    expected = [(name, mib, sms * CORES_PER_SM[cc], cc) for name, mib, sms, cc in NODES[profile]]
    assert [(g["name"], g["mib"], g["cores"], g["cc"]) for g in found] == expected
    assert [g["uuid"] for g in found] == [gpu.uuid for gpu in node.gpus()]
    assert [g["minor"] for g in found] == [gpu.minor for gpu in node.gpus()]
    assert [g["index"] for g in found] == list(range(len(found)))
    assert len({g["uuid"] for g in found}) == len(found)
    for gpu in found:
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", gpu["uuid"])
        assert gpu["pci"] == f"00000000:{gpu['bus']:02X}:00.0"
        assert gpu["pci_legacy"] == gpu["pci"][4:]
        assert gpu["vendor"] == 0x10DE


def test_minor_numbers_may_have_gaps_and_another_order(make_node: MakeNode, ask: Ask) -> None:
    answer = ask(make_node("mixed"), "answer = [nvmlDeviceGetMinorNumber(h) for h in handles()]")
    assert answer == [4, 0, 1, 3]


@pytest.mark.parametrize(
    ("branch", "driver", "nvml", "cuda"),
    [
        (535, "535.247.01", "12.535.247.01", 12020),
        (550, "550.163.01", "12.550.163.01", 12040),
        (555, "555.58.02", "12.555.58.02", 12050),
        (570, "570.124.06", "12.570.124.06", 12080),
        (590, "590.48.01", "13.590.48.01", 13010),
        (615, "615.71.09", "13.615.71.09", 13040),
    ],
)
def test_the_driver_branch_decides_the_versions(
    branch: int, driver: str, nvml: str, cuda: int, make_node: MakeNode, ask: Ask
) -> None:
    code = (
        "answer = [nvmlSystemGetDriverVersion(), nvmlSystemGetNVMLVersion(),"
        " nvmlSystemGetCudaDriverVersion(), nvmlSystemGetCudaDriverVersion_v2()]"
    )
    assert ask(make_node(driver=branch), code) == [driver, nvml, cuda, cuda]


def test_a_driver_that_is_too_old_for_a_card_is_refused(make_node: MakeNode) -> None:
    with pytest.raises(SimError, match=r"driver 535 does not support NVIDIA B200.*570"):
        make_node("b200x8", driver=535)


def test_a_gpu_is_found_by_uuid_bus_id_and_serial(make_node: MakeNode, ask: Ask) -> None:
    code = """
h = handles()[1]
uuid, pci, serial = nvmlDeviceGetUUID(h), nvmlDeviceGetPciInfo(h).busId, nvmlDeviceGetSerial(h)
binary = bytes.fromhex(uuid.removeprefix("GPU-").replace("-", ""))
found = [
    nvmlDeviceGetHandleByUUID(uuid), nvmlDeviceGetHandleByPciBusId(pci),
    nvmlDeviceGetHandleByPciBusId(pci[4:].lower()), nvmlDeviceGetHandleBySerial(serial),
    nvmlDeviceGetHandleByUUIDV(uuid.encode(), NVML_UUID_TYPE_ASCII),
    nvmlDeviceGetHandleByUUIDV(binary, NVML_UUID_TYPE_BINARY),
]
answer = [nvmlDeviceGetIndex(f) for f in found]
"""
    assert ask(make_node("t4x2"), code) == [1] * 6


def test_what_does_not_exist_is_not_found(make_node: MakeNode, ask: Ask) -> None:
    code = """
answer = [
    code(nvmlDeviceGetHandleByIndex, 2), code(nvmlDeviceGetHandleByUUID, "GPU-0"),
    code(nvmlDeviceGetHandleByPciBusId, "00000000:01:00.0"), code(nvmlDeviceGetHandleBySerial, "1"),
]
"""
    assert ask(make_node("t4x2"), code) == [
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_NOT_FOUND,
    ]


def test_init_is_counted_and_calls_outside_of_it_are_refused(make_node: MakeNode, ask: Ask) -> None:
    code = """
from ctypes import CDLL, byref, c_uint
lib = CDLL("libnvidia-ml.so.1")
n = c_uint()
count = lambda: lib.nvmlDeviceGetCount_v2(byref(n))
answer = [count(), lib.nvmlInit_v2(), lib.nvmlInitWithFlags(0), count(), lib.nvmlShutdown(),
          count(), lib.nvmlShutdown(), count(), lib.nvmlShutdown()]
"""
    assert ask(make_node(), code, init=False) == [1, 0, 0, 0, 0, 0, 0, 1, 1]


def test_the_set_of_gpus_is_fixed_at_init(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    code = f"""
from pathlib import Path
from gpuslice_sim.node import SimNode
node = SimNode.open(Path({str(node.directory)!r}))
first, second = handles()
node.faults.unplug(1)
new = node.faults.add_gpu("l40s")
before = [nvmlDeviceGetCount(), code(nvmlDeviceGetName, first), code(nvmlDeviceGetName, second)]
nvmlShutdown()
nvmlInit()
answer = [before, [nvmlDeviceGetName(h) for h in handles()],
          nvmlDeviceGetUUID(handles()[1]) == new.uuid]
"""
    lost = pynvml.NVML_ERROR_GPU_IS_LOST
    assert ask(node, code) == [[2, 0, lost], ["Tesla T4", "NVIDIA L40S"], True]


def test_an_init_beside_another_sees_what_the_other_saw(make_node: MakeNode, ask: Ask) -> None:
    """So a process cannot have a new list of GPUs while it still hears of events by the old one."""
    node = make_node("t4x2")
    code = f"""
from pathlib import Path
from gpuslice_sim.node import SimNode
SimNode.open(Path({str(node.directory)!r})).faults.add_gpu("t4")
nvmlInit()
beside = nvmlDeviceGetCount()
nvmlShutdown()
nvmlShutdown()
nvmlInit()
answer = [beside, nvmlDeviceGetCount()]
"""
    assert ask(node, code) == [2, 3]


def test_a_library_without_a_node_has_no_driver(
    make_node: MakeNode, ask: Ask, tmp_path: Path
) -> None:
    node = make_node()
    stray = tmp_path / "stray"
    stray.mkdir()
    shutil.copy(node.lib / "libnvidia-ml.so.1", stray)
    script = "import pynvml; pynvml.nvmlInit()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"LD_LIBRARY_PATH": str(stray)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Driver Not Loaded" in done.stderr
    env = {"LD_LIBRARY_PATH": str(stray), "GPUSLICE_SIM_NODE": str(node.directory)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)


def test_the_driver_roots_library_finds_the_same_node(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    (library,) = node.root.glob("usr/lib/*/libnvidia-ml.so.1")
    script = "import pynvml as p; p.nvmlInit(); print(p.nvmlDeviceGetCount())"
    env = {"LD_LIBRARY_PATH": str(library.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "2\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_device_nodes_decide_what_a_container_sees(make_node: MakeNode) -> None:
    node = make_node("mixed")
    count = "import pynvml as p; p.nvmlInit(); print(p.nvmlDeviceGetCount(), end=' ')"
    script = f'rm /dev/nvidia1 /dev/nvidia4 && "{sys.executable}" -c "{count}"'

    def seen(command: list[str]) -> int:
        done = subprocess.run(command, env=node.env(), capture_output=True, text=True, check=True)
        return int(done.stdout)

    inside = node.namespace_command(["sh", "-c", script])
    outside = [sys.executable, "-c", count]
    assert seen(inside) == 4
    node.set({"enumerate.device_nodes": 1})
    assert seen(inside) == 2
    if not Path("/dev/nvidiactl").exists():
        assert seen(outside) == 4


def test_every_name_of_nvml_is_there(make_node: MakeNode, ask: Ask) -> None:
    source = Path(pynvml.__file__).read_text()
    asked = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', source))
    native = Path(gpuslice_sim.__file__).parents[2] / "native"
    listed = set((native / "nvml" / "names.txt").read_text().split())
    assert len(asked) > 400
    names = sorted(asked | listed | {"nvmlInit", "nvmlEventSetWait", "nvmlDeviceGetPciInfo"})
    code = f"""
from ctypes import CDLL
lib = CDLL("libnvidia-ml.so.1")
answer = [name for name in {names!r} if not hasattr(lib, name)]
"""
    assert ask(make_node(), code, init=False) == []


def test_a_wrong_handle_is_an_error_and_no_crash(make_node: MakeNode, ask: Ask) -> None:
    code = """
from ctypes import CDLL, c_void_p, create_string_buffer
lib = CDLL("libnvidia-ml.so.1")
buffer = create_string_buffer(96)
answer = [lib.nvmlDeviceGetUUID(c_void_p(x), buffer, 96) for x in (0, 0xDEADBEEF)]
h = handles()[0]
answer.append(lib.nvmlDeviceGetUUID(h, buffer, 5))
"""
    assert ask(make_node(), code) == [2, 2, 7]


@pytest.mark.parametrize("profile", ["v100x4", "a100x2-mig-mixed"])
def test_no_call_crashes_on_null_pointers(profile: str, make_node: MakeNode, ask: Ask) -> None:
    native = Path(gpuslice_sim.__file__).parents[2] / "native"
    names = (native / "nvml" / "names.txt").read_text().split()
    code = f"""
from ctypes import CDLL
lib, gpu = CDLL("libnvidia-ml.so.1"), handles()[0]
names = [name for name in {names!r} if name != "nvmlShutdown"]
for name in names:
    for arguments in ([None] * 7, [gpu, *[None] * 6], [gpu, 0, 0, *[None] * 4]):
        getattr(lib, name)(*arguments)
answer = len(names)
"""
    assert ask(make_node(profile, driver=615), code) == len(names) - 1


def test_identity_that_tools_like_to_show(make_node: MakeNode, ask: Ask) -> None:
    code = """
h = handles()[0]
answer = {
    "brand": nvmlDeviceGetBrand(h), "arch": nvmlDeviceGetArchitecture(h),
    "vbios": nvmlDeviceGetVbiosVersion(h), "part": nvmlDeviceGetBoardPartNumber(h),
    "limit": nvmlDeviceGetPowerManagementLimit(h), "temperature": nvmlDeviceGetTemperature(h, 0),
    "clock": nvmlDeviceGetMaxClockInfo(h, NVML_CLOCK_SM), "fan": code(nvmlDeviceGetFanSpeed, h),
    "pstate": nvmlDeviceGetPerformanceState(h), "bus": nvmlDeviceGetMemoryBusWidth(h),
    "gen": nvmlDeviceGetMaxPcieLinkGeneration(h), "bar1": nvmlDeviceGetBAR1MemoryInfo(h).bar1Total,
    "encoder": nvmlDeviceGetEncoderUtilization(h)[0],
}
from ctypes import byref
extended = nvmlPciInfoExt_v1_t(version=nvmlPciInfoExt_v1)
nvmlDeviceGetPciInfoExt(h, byref(extended))
answer["extended"] = [extended.busId, extended.baseClass]
"""
    answer = ask(make_node("h100x8"), code)
    assert answer == {
        "brand": pynvml.NVML_BRAND_NVIDIA,
        "arch": pynvml.NVML_DEVICE_ARCH_HOPPER,
        "vbios": "96.00.89.00.01",
        "part": "692-2G520-0200-000",
        "limit": 700_000,
        "temperature": 34,
        "clock": 1980,
        "fan": pynvml.NVML_ERROR_NOT_SUPPORTED,
        "pstate": 0,
        "bus": 5120,
        "gen": 5,
        "bar1": 128 << 30,
        "encoder": 0,
        "extended": ["00000000:1B:00.0", 3],
    }
