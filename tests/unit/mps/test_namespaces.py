"""Commands of namespaces of MPS, and the daemon's answers."""

from __future__ import annotations

import pytest

from gpuslice.mps.namespaces import (
    Listed,
    Namespace,
    UnexpectedTable,
    create_namespace,
    create_server,
    listed_clients,
    listed_namespaces,
    namespace_in,
    set_namespace,
    status_of_server,
    unused_namespaces,
)
from gpuslice.slicing.limits import Limits

NAME = "c" + "0a" * 15 + "f"
TABLE = """\
name, server, server-status, pinned-memory-limit, active-thread-percentage, client-priority, pipe
default, gpu, Ready, 1G, 10.0, -, /mps/GPU-1/pipe/gpu/default
one, gpu, Ready, 1500M, 25.0, 0, /mps/GPU-1/pipe/gpu/one
else, other, Ready, -, -, -, /mps/GPU-1/pipe/other/else
"""


def test_commands_name_the_server_and_both_limits() -> None:
    assert create_server("GPU-1", Limits(1024, 10)) == (
        *("server", "create", "gpu", "--allowed-devices=GPU-1"),
        *("--pinned-memory-limit=1024M", "--active-thread-percentage=10"),
    )
    limits = ("--server=gpu", "--pinned-memory-limit=5M", "--active-thread-percentage=100")
    # A namespace inherits nothing, so what has no limit gets the largest.
    assert create_namespace("one", Limits(5, None)) == ("namespace", "create", "one", *limits)
    assert set_namespace("one", Limits(5, None)) == ("namespace", "set", "one", *limits)


def test_columns_are_found_by_their_names() -> None:
    assert listed_namespaces(TABLE) == {
        "default": Listed("1G", "10.0"),
        "one": Listed("1500M", "25.0"),
    }
    other = "Active Thread Percentage,Pinned_Memory_Limit,SERVER,Name\n50 %,2G,gpu,x\n"
    assert listed_namespaces(other) == {"x": Listed("2G", "50 %")}
    assert status_of_server("name, uid, status\ngpu, 0, Ready\n") == "Ready"
    assert status_of_server("name, uid, status\n") is None
    assert listed_clients("pid, device\n12, a\n12, b\n13, a\n-, c\n") == {12, 13}


@pytest.mark.parametrize("text", ["", "Unknown command", "name, server\ndefault, gpu"])
def test_an_answer_without_the_columns_is_not_a_table(text: str) -> None:
    with pytest.raises(UnexpectedTable):
        listed_namespaces(text)


@pytest.mark.parametrize(
    ("memory", "threads", "holds"),
    [
        ("1536M", "30.0", True),
        ("1536MiB", "30%", True),
        ("1G", "30", True),  # rounded down
        ("2G", "30", False),
        ("1535M", "30", False),
        ("1572864K", "30", True),
        ("1536M", "30.1", False),
        ("1536M", "100.0", False),
        ("-", "30.0", False),
        ("1536M", "-", False),
        ("1536", "30", False),
    ],
)
def test_limits_hold_if_they_are_printed_as_set(memory: str, threads: str, holds: bool) -> None:
    assert Listed(memory, threads).holds(Limits(1536, 30)) is holds


def test_a_namespace_without_a_thread_limit_has_all_threads() -> None:
    assert Listed("5M", "100.0").holds(Limits(5, None))
    assert not Listed("5M", "-").holds(Limits(5, None))


def test_the_variables_of_a_container_have_all_that_its_namespace_needs() -> None:
    variables = {
        "CUDA_MPS_PIPE_DIRECTORY": f"/mps/GPU-1/pipe/gpu/{NAME}",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-1=2048M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "13",
    }
    assert namespace_in(variables) == Namespace("/mps/GPU-1/pipe", NAME, Limits(2048, 13))
    del variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
    assert namespace_in(variables) == Namespace("/mps/GPU-1/pipe", NAME, Limits(2048, None))


@pytest.mark.parametrize(
    "change",
    [
        {"CUDA_MPS_PIPE_DIRECTORY": "/mps/GPU-1/pipe"},
        {"CUDA_MPS_PIPE_DIRECTORY": "/mps/GPU-1/pipe/gpu/default"},
        {"CUDA_MPS_PIPE_DIRECTORY": f"/mps/GPU-1/pipe/other/{NAME}"},
        {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ""},
    ],
)
def test_other_containers_are_in_no_namespace(change: dict[str, str]) -> None:
    variables = {
        "CUDA_MPS_PIPE_DIRECTORY": f"/mps/GPU-1/pipe/gpu/{NAME}",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-1=2048M",
    }
    assert namespace_in(variables | change) is None


def test_only_namespaces_of_containers_that_are_gone_are_unused() -> None:
    other = "c" + "1" * 31
    assert unused_namespaces(["default", "mine", NAME, other], [NAME]) == [other]
