"""The driver library's structures against NVIDIA's own header, which comes with its Go bindings."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from .build import MODULES

OURS = Path(__file__).parents[2] / "sim" / "native" / "nvml"
BINDINGS = "github.com/NVIDIA/go-nvml"
SAME_LAYOUT = {
    "memory_v1": "nvmlMemory_t",
    "memory_v2": "nvmlMemory_v2_t",
    "bar1_memory": "nvmlBAR1Memory_t",
    "pci_info_v3": "nvmlPciInfo_t",
    "pci_info_ext": "nvmlPciInfoExt_v1_t",
    "process_v1": "nvmlProcessInfo_v1_t",
    "process_v2": "nvmlProcessInfo_t",
    "process_detail": "nvmlProcessDetail_v1_t",
    "process_detail_list": "nvmlProcessDetailList_v1_t",
    "process_utilization": "nvmlProcessUtilizationSample_t",
    "process_utilization_info": "nvmlProcessUtilizationInfo_v1_t",
    "processes_utilization_info": "nvmlProcessesUtilizationInfo_v1_t",
    "utilization": "nvmlUtilization_t",
    "attributes": "nvmlDeviceAttributes_t",
    "placement": "nvmlGpuInstancePlacement_t",
    "gi_profile": "nvmlGpuInstanceProfileInfo_t",
    "gi_profile_v2": "nvmlGpuInstanceProfileInfo_v2_t",
    "gi_profile_v3": "nvmlGpuInstanceProfileInfo_v3_t",
    "gi_info": "nvmlGpuInstanceInfo_t",
    "ci_profile": "nvmlComputeInstanceProfileInfo_t",
    "ci_profile_v2": "nvmlComputeInstanceProfileInfo_v2_t",
    "ci_profile_v3": "nvmlComputeInstanceProfileInfo_v3_t",
    "ci_info": "nvmlComputeInstanceInfo_t",
    "event_data": "nvmlEventData_t",
    "event_wait_v3": "nvmlEventSetWait_v3_t",
    "field_value": "nvmlFieldValue_t",
    "sample": "nvmlSample_t",
    "ecc_counts": "nvmlEccErrorCounts_t",
    "sram_ecc_status": "nvmlEccSramErrorStatus_v1_t",
    "remapped_rows_v2": "nvmlRemappedRowsInfo_v2_t",
    "remap_histogram": "nvmlRowRemapperHistogramValues_t",
    "repair_status": "nvmlRepairStatus_v1_t",
    "fabric_info": "nvmlGpuFabricInfo_t",
    "fabric_info_v2": "nvmlGpuFabricInfo_v2_t",
    "fabric_info_v3": "nvmlGpuFabricInfo_v3_t",
    "temperature": "nvmlTemperature_v1_t",
    "uuid_argument": "nvmlUUID_v1_t",
    "driver_branch": "nvmlSystemDriverBranchInfo_v1_t",
    "memory_limits": "nvmlSetMemoryLimits_v1_t",
    "memory_limits_used": "nvmlGetMemoryLimits_v1_t",
}


def test_every_structure_is_as_large_as_in_nvidias_header(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.c"
    theirs.write_text(
        f'#include <stddef.h>\n#include "{nvidias_header()}"\n#include <stdio.h>\n'
        + sizes_program(SAME_LAYOUT)
    )
    ours = tmp_path / "ours.c"
    ours.write_text(
        f'#include "{OURS / "api.h"}"\n#include <stdio.h>\n'
        + sizes_program({name: f"struct {name}" for name in SAME_LAYOUT})
    )
    assert output_of(ours) == output_of(theirs)


def test_every_function_of_nvidias_header_is_offered(tmp_path: Path) -> None:
    source = tmp_path / "names.c"
    source.write_text(f'#include <stddef.h>\n#include "{nvidias_header()}"\n')
    plain = subprocess.run(
        [*compiler(), "-E", "-P", source], capture_output=True, text=True, check=True
    ).stdout
    declared = {
        word.partition("(")[0].strip("*")
        for line in plain.replace("(", " ( ").splitlines()
        if line.startswith(("nvmlReturn_t", "const char"))
        for word in line.split()
        if word.startswith("nvml") and word != "nvmlReturn_t" and not word.endswith("_t")
    }
    offered = set((OURS / "names.txt").read_text().split())
    assert len(declared) > 300
    assert sorted(declared - offered) == []


def nvidias_header() -> Path:
    done = subprocess.run(
        ["go", "mod", "download", "-json", BINDINGS],
        cwd=MODULES[0].source,
        env=os.environ | {"GOFLAGS": "-mod=readonly", "GOWORK": "off"},
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(json.loads(done.stdout)["Dir"]) / "pkg" / "nvml" / "nvml.h"


def sizes_program(types: dict[str, str]) -> str:
    lines = [f'printf("{name} %zu\\n", sizeof({kind}));' for name, kind in types.items()]
    return "int main(void) {\n" + "\n".join(lines) + "\n}\n"


def output_of(source: Path) -> list[str]:
    program = source.with_suffix("")
    subprocess.run([*compiler(), "-w", source, "-o", program], check=True)
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()


def compiler() -> list[str]:
    return os.environ.get("CC", "cc").split()
