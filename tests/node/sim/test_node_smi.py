"""The stand-in for nvidia-smi."""

from __future__ import annotations

import os
import subprocess

import pytest

from gpuslice_sim.node import SimNode

from .conftest import MakeNode


def smi(node: SimNode, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [node.bin / "nvidia-smi", *arguments], env={}, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_the_list_has_the_real_format(make_node: MakeNode) -> None:
    node = make_node("a100x2-mig-mixed")
    first, second = node.gpus()
    lines = [f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {first.uuid})"]
    names = ("3g.20gb    ", "2g.10gb    ", "1g.5gb     ", "1g.5gb     ")
    for number, (name, mig) in enumerate(zip(names, first.mig, strict=True)):
        lines.append(f"  MIG {name} Device  {number}: (UUID: {mig.uuid})")
    lines.append(f"GPU 1: NVIDIA A100-SXM4-40GB (UUID: {second.uuid})")
    assert smi(node, "-L") == (0, "\n".join(lines) + "\n")


def test_the_compute_mode_is_set_by_uuid_index_and_bus_id(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    second = node.gpus()[1]
    for which, mode, name, number in (
        (second.uuid, "EXCLUSIVE_PROCESS", "EXCLUSIVE_PROCESS", 3),
        ("1", "0", "DEFAULT", 0),
        (second.pci, "2", "PROHIBITED", 2),
    ):
        done = f"Set compute mode to {name} for GPU 00000000:D8:00.0.\nAll done.\n"
        assert smi(node, "-i", which, "-c", mode) == (0, done)
        assert [gpu.compute_mode for gpu in node.gpus()] == [0, number]
    again = "Compute mode is already set to PROHIBITED for GPU 00000000:D8:00.0.\nAll done.\n"
    assert smi(node, "-i", "1", "-c", "PROHIBITED") == (0, again)


def test_a_query_prints_csv_with_or_without_header_and_units(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    node.faults.add_process(0, 1, 1 << 30, invented=True)
    fields = "index,name,memory.total,memory.used,mig.mode.current,fan.speed"
    head = "index, name, memory.total [MiB], memory.used [MiB], mig.mode.current, fan.speed [%]"
    query = f"--query-gpu={fields}"
    rows = "0, Tesla T4, 15360 MiB, 1024 MiB, [N/A], [N/A]\n"
    rows += "1, Tesla T4, 15360 MiB, 0 MiB, [N/A], [N/A]\n"
    assert smi(node, query, "--format=csv") == (0, f"{head}\n{rows}")
    assert smi(node, "-i", "0", query, "--format=csv,noheader,nounits") == (
        0,
        "0, Tesla T4, 15360, 1024, [N/A], [N/A]\n",
    )


def test_every_field_can_be_asked_for_on_every_kind_of_gpu(make_node: MakeNode) -> None:
    node = make_node("mixed")
    _, listed = smi(node, "--help-query-gpu")
    names = listed.replace('"', "").split()
    assert len(names) > 40
    code, out = smi(node, f"--query-gpu={','.join(names)}", "--format=csv,noheader")
    assert code == 0
    rows = [line.split(", ") for line in out.splitlines()]
    assert [len(row) for row in rows] == [len(names)] * 4


def test_processes_are_queried(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    node.faults.add_process(1, os.getpid(), 300 << 20)
    code, out = smi(node, "--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader")
    assert (code, out) == (0, f"{os.getpid()}, {node.gpus()[1].uuid}, 300 MiB\n")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--query-gpu=nonsense", "--format=csv"], 2, '"nonsense" is not a valid field to query'),
        (["--query-gpu=name"], 2, "--format=csv"),
        (["--nonsense"], 2, "Invalid combination of input arguments"),
        (["-c"], 2, "Invalid combination of input arguments"),
        (["-c", "SHARED"], 2, 'compute mode "SHARED"'),
        (["-i", "9", "-L"], 6, "No devices were found"),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], code: int, text: str, make_node: MakeNode
) -> None:
    status, out = smi(make_node("t4x2"), *arguments)
    assert status == code
    assert text in out


def test_faults_of_the_driver_show(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    node.faults.lost(1)
    code, out = smi(node)
    assert code == 15
    assert "GPU is lost" in out
    assert smi(node, "-i", "0", "-L")[0] == 0
    node.faults.nvml_init("DRIVER_NOT_LOADED")
    code, out = smi(node, "-L")
    assert code == 9
    assert "couldn't communicate with the NVIDIA driver" in out


def test_the_summary_names_gpus_and_processes(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    node.faults.add_process(0, os.getpid(), 300 << 20)
    code, out = smi(node)
    assert code == 0
    assert "Driver Version: 570.124.06   CUDA Version: 12.8" in out
    assert out.count("Tesla T4") == 2
    assert str(os.getpid()) in out
    assert len({len(line) for line in out.splitlines()}) == 1
