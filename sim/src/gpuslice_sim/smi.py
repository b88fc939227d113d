"""A simulated nvidia-smi: lists GPUs, prints queries as CSV, sets compute and persistence mode.

It uses the simulated driver through NVML, like the real one, so faults affect it, too.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pynvml

from gpuslice_sim import smi_fields

USAGE = """NVIDIA System Management Interface -- simulated

    nvidia-smi                                        summary of the GPUs
    nvidia-smi -L                                     list of GPUs and MIG devices
    nvidia-smi [-i ID] -c MODE                        set the compute mode: 0/DEFAULT,
                                                      2/PROHIBITED, 3/EXCLUSIVE_PROCESS
    nvidia-smi [-i ID] -pm 0|1                        set the persistence mode
    nvidia-smi [-i ID] --query-gpu=A,B --format=csv[,noheader][,nounits]
    nvidia-smi [-i ID] --query-compute-apps=A,B --format=csv[,noheader][,nounits]
    nvidia-smi --help-query-gpu                       fields of --query-gpu
    nvidia-smi --version

ID is an index, a UUID or a PCI bus id. Separate several by commas.
"""
COMPUTE_MODES = {0: "DEFAULT", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}
INVALID_ARGUMENT, NOTHING_FOUND = 2, 6
_NAMED = {"--query-gpu": "--query-gpu", "--query-compute-apps": "--query-compute-apps",
          "--format": "--format", "--id": "-i", "--compute-mode": "-c",
          "--persistence-mode": "-pm"}  # fmt: skip
_TAKE_VALUE = ("-i", "-c", "-pm", *_NAMED)
_FLAGS = {"-L": "-L", "--list-gpus": "-L", "-h": "-h", "--help": "-h", "--version": "--version",
          "--help-query-gpu": "--help-query-gpu"}  # fmt: skip


class SmiError(Exception):
    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def main() -> None:
    try:
        _run(parse(sys.argv[1:]))
    except SmiError as error:
        print(error)
        _exit(error.code)
    except BrokenPipeError:
        _exit(0)
    _exit(0)


def parse(argv: list[str]) -> dict[str, str]:
    """Options by their short name. The real program accepts `--name=value` and `-x value`."""
    options: dict[str, str] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in _FLAGS and not equals:
            options[_FLAGS[name]] = ""
        elif name in _TAKE_VALUE and (equals or rest):
            options[_NAMED.get(name, name)] = value if equals else rest.pop(0)
        else:
            raise SmiError(
                "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n",
                INVALID_ARGUMENT,
            )
    return options


def _run(options: dict[str, str]) -> None:
    if "-h" in options:
        print(USAGE)
        return
    if "--help-query-gpu" in options:
        print("\n".join(f'"{name}"' for name in sorted(smi_fields.GPU)))
        return
    _start_nvml()
    if "--version" in options:
        _print_version()
    elif "-c" in options:
        _set_compute_mode(_chosen(options), options["-c"])
    elif "-pm" in options:
        _set_persistence(_chosen(options), options["-pm"])
    elif "--query-gpu" in options:
        gpus = [(handle,) for handle in _chosen(options)]
        _query(options, "--query-gpu", smi_fields.GPU, gpus)
    elif "--query-compute-apps" in options:
        apps = [(handle, app) for handle in _chosen(options) for app in _apps(handle)]
        _query(options, "--query-compute-apps", smi_fields.APPS, apps)
    elif "-L" in options:
        _list(_chosen(options))
    else:
        _summary(_chosen(options))


def _start_nvml() -> None:
    node = os.environ.get("GPUSLICE_SIM_NODE")
    if node:
        # pynvml loads the library by name, and the loader then uses this one.
        ctypes.CDLL(str(Path(node) / "lib" / "libnvidia-ml.so.1"), ctypes.RTLD_GLOBAL)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
            text = (
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
                "Make sure that the latest NVIDIA driver is installed and running.\n"
            )
        else:
            text = f"Failed to initialize NVML: {error}"
        raise SmiError(text, _exit_code(error)) from error


def _exit_code(error: pynvml.NVMLError) -> int:
    code = int(error.value)
    return code if code < 256 else 255


def _chosen(options: dict[str, str]) -> list[object]:
    if "-i" in options:
        return [_find(name) for name in options["-i"].split(",")]
    handles = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handles.append(pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError as error:
            raise SmiError(
                f"Unable to determine the device handle for GPU{index}: {error}", _exit_code(error)
            ) from error
    if not handles:
        raise SmiError("No devices were found", NOTHING_FOUND)
    return handles


def _find(name: str) -> object:
    finders: list[Callable[[], object]] = [
        lambda: pynvml.nvmlDeviceGetHandleByUUID(name),
        lambda: pynvml.nvmlDeviceGetHandleByPciBusId(name),
    ]
    if name.isdigit():
        finders = [lambda: pynvml.nvmlDeviceGetHandleByIndex(int(name))]
    for find in finders:
        try:
            return find()
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                text = f"Unable to determine the device handle for GPU {name}: {error}"
                raise SmiError(text, _exit_code(error)) from error
    raise SmiError("No devices were found", NOTHING_FOUND)


def _list(handles: list[object]) -> None:
    for handle in handles:
        index = pynvml.nvmlDeviceGetIndex(handle)
        print(f"GPU {index}: {pynvml.nvmlDeviceGetName(handle)} (UUID: {_uuid(handle)})")
        for number, mig in enumerate(_mig_devices(handle)):
            profile = pynvml.nvmlDeviceGetName(mig).rpartition(" MIG ")[2]
            print(f"  MIG {profile:<11} Device {number:>2}: (UUID: {_uuid(mig)})")


def _uuid(handle: object) -> str:
    return str(pynvml.nvmlDeviceGetUUID(handle))


def _mig_devices(handle: object) -> list[object]:
    devices = []
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(pynvml.NVMLError_NotFound):
            devices.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
    return devices


def _set_compute_mode(handles: list[object], wanted: str) -> None:
    modes = {str(number): number for number in COMPUTE_MODES}
    modes |= {name: number for number, name in COMPUTE_MODES.items()}
    if wanted.upper() not in modes:
        raise SmiError(f'Unable to parse compute mode "{wanted}"', INVALID_ARGUMENT)
    mode = modes[wanted.upper()]
    for handle in handles:
        bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
        if pynvml.nvmlDeviceGetComputeMode(handle) == mode:
            print(f"Compute mode is already set to {COMPUTE_MODES[mode]} for GPU {bus_id}.")
            continue
        try:
            pynvml.nvmlDeviceSetComputeMode(handle, mode)
        except pynvml.NVMLError_NotSupported:
            print(
                f"Setting compute mode to {COMPUTE_MODES[mode]} is not supported for GPU {bus_id}."
            )
            print("Treating as warning and moving on.")
            continue
        except pynvml.NVMLError as error:
            raise SmiError(
                f"Unable to set the compute mode for GPU {bus_id}: {error}\n"
                "Terminating early due to previous errors.",
                _exit_code(error),
            ) from error
        print(f"Set compute mode to {COMPUTE_MODES[mode]} for GPU {bus_id}.")
    print("All done.")


def _set_persistence(handles: list[object], wanted: str) -> None:
    modes = {"0": 0, "DISABLED": 0, "1": 1, "ENABLED": 1}
    if wanted.upper() not in modes:
        raise SmiError(f'Unable to parse persistence mode "{wanted}"', INVALID_ARGUMENT)
    mode = modes[wanted.upper()]
    for handle in handles:
        bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
        try:
            pynvml.nvmlDeviceSetPersistenceMode(handle, mode)
        except pynvml.NVMLError as error:
            raise SmiError(
                f"Unable to set persistence mode for GPU {bus_id}: {error}\n"
                "Terminating early due to previous errors.",
                _exit_code(error),
            ) from error
        print(f"{'Enabled' if mode else 'Disabled'} persistence mode for GPU {bus_id}.")
    print("All done.")


def _apps(handle: object) -> list[object]:
    return list(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))


def _query(
    options: dict[str, str],
    option: str,
    fields: smi_fields.Fields,
    rows: Sequence[tuple[object, ...]],
) -> None:
    formats = options.get("--format", "").split(",")
    if "csv" not in formats or set(formats) - {"csv", "noheader", "nounits"}:
        text = f'"{option}=" needs "--format=csv[,noheader][,nounits]"'
        raise SmiError(text, INVALID_ARGUMENT)
    names = [name.strip() for name in options[option].split(",")]
    for name in names:
        if name not in fields:
            raise SmiError(f'Field "{name}" is not a valid field to query.\n', INVALID_ARGUMENT)
    units = "nounits" not in formats
    chosen = [fields[name] for name in names]
    if "noheader" not in formats:
        heads = (f"{n} [{f.unit}]" if f.unit else n for n, f in zip(names, chosen, strict=True))
        print(", ".join(heads))
    for row in rows:
        print(", ".join(field.show(row, units=units) for field in chosen))


def _print_version() -> None:
    print(f"NVIDIA-SMI version  : {pynvml.nvmlSystemGetDriverVersion()}")
    print(f"NVML version        : {pynvml.nvmlSystemGetNVMLVersion()}")
    print(f"DRIVER version      : {pynvml.nvmlSystemGetDriverVersion()}")
    print(f"CUDA Version        : {_cuda_version()}")


def _cuda_version() -> str:
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    return f"{cuda // 1000}.{cuda % 1000 // 10}"


def _summary(handles: list[object]) -> None:
    driver = pynvml.nvmlSystemGetDriverVersion()
    rule = "+" + "-" * 89 + "+"
    title = f"NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: {_cuda_version()}"
    print(f"{rule}\n| {title:<87} |\n{rule}")
    for handle in handles:
        index, name, *rest = (smi_fields.GPU[f].show((handle,), units=True) for f in _SUMMARY)
        bus_id, used, total, busy, mode = rest
        memory = f"{used:>10} /{total:>11}"
        print(f"| {index:>2}  {name:<24} {bus_id} {memory} {busy:>6}  {mode:<9.9} |")
    print(rule)
    for handle in handles:
        index = pynvml.nvmlDeviceGetIndex(handle)
        for app in _apps(handle):
            pid, name, used = (
                smi_fields.APPS[f].show((handle, app), units=True) for f in _APP_SUMMARY
            )
            print(f"| {index:>2}  {pid:>8}  {name:<59.59} {used:>13} |")
    print(rule)


_SUMMARY = ("index", "name", "pci.bus_id", "memory.used", "memory.total", "utilization.gpu",
            "compute_mode")  # fmt: skip
_APP_SUMMARY = ("pid", "process_name", "used_memory")


def _exit(code: int) -> NoReturn:
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
