"""`gpuslice demo` from start to end."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from gpuslice_sim.process import BackgroundProcess

from .rig import BIN, eventually


def demo(*args: str, scratch: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "gpuslice", "demo", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=os.environ | {"TMPDIR": str(scratch)},
    )


def processes_of(scratch: Path) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(scratch).encode() in entry.read_bytes():
                found.append(entry.with_name("cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_the_demo_prints_plain_text_and_leaves_nothing_behind(short_path: Path) -> None:
    done = demo(scratch=short_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for sentence in (
        "the kubelet sees aliyun.com/gpu-mem: 28",
        "pod-a requests 6 GiB",
        "CUDA_ERROR_OUT_OF_MEMORY at exactly 6442450944 bytes = 6 GiB",
        "CUDA_ERROR_OUT_OF_MEMORY at exactly 3221225472 bytes = 3 GiB",
        "no single GPU of this node has 7 GiB free",
        "all its slices are unhealthy at once: 14 of 28 units allocatable",
        "the container waits because its limits would not be enforced",
        "MPS is back, the container starts",
    ):
        assert sentence in re.sub(r"\s*│\n│ ", " ", done.stdout)
    assert "\x1b[" not in done.stdout
    assert list(short_path.iterdir()) == []
    eventually(lambda: processes_of(short_path) == [], "its processes are gone")


def test_on_a_terminal_it_is_coloured_and_nothing_is_truncated(short_path: Path) -> None:
    screen, terminal = pty.openpty()
    with subprocess.Popen(
        [BIN / "gpuslice", "demo", "--pods", "6"],
        stdout=terminal,
        env=os.environ | {"TMPDIR": str(short_path), "COLUMNS": "80", "TERM": "xterm-256color"},
    ) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal reports the end of its program
            while chunk := os.read(screen, 4096):
                shown += chunk
    os.close(screen)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())
    assert text != shown.decode()
    assert re.search(r"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT +GPU-[-0-9a-f]+=\s+6144M", text)


def test_a_slice_as_large_as_the_gpu_reaches_its_limit(short_path: Path) -> None:
    done = demo("--pods", "14", scratch=short_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CUDA_ERROR_OUT_OF_MEMORY at exactly 15032385536 bytes = 14 GiB" in done.stdout


@pytest.mark.parametrize("profile", ["mixed", "h100x8"])
def test_other_nodes_and_pods_can_be_shown(short_path: Path, profile: str) -> None:
    done = demo("--profile", profile, "--pods", "10, 2", scratch=short_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CUDA_ERROR_OUT_OF_MEMORY at exactly 10737418240 bytes = 10 GiB" in done.stdout


@pytest.mark.parametrize(
    ("args", "because"),
    [
        (["--profile", "t5x2"], "t5x2"),
        (["--profile", "a100x2-mig-single"], "GPUs in MIG mode"),
        (["--pods", "6,x"], "pods: '6,x' is not valid: use whole numbers of GiB"),
    ],
)
def test_an_invalid_option_is_named(short_path: Path, args: list[str], because: str) -> None:
    done = demo(*args, scratch=short_path)
    assert done.returncode == 1
    assert because in done.stderr
    assert list(short_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_with_keep_it_runs_until_it_is_stopped(short_path: Path, number: signal.Signals) -> None:
    scratch = Path(tempfile.mkdtemp(dir=short_path))
    argv = [str(BIN / "gpuslice"), "demo", "--keep"]
    env = os.environ | {"TMPDIR": str(scratch), "COLUMNS": "200"}
    with BackgroundProcess(argv, env=env, log=short_path / "log") as kept:
        output = kept.wait_for_output("tail -f .*agent.log", timeout=180)
        fault = re.search(r"\$ gpuslice-sim (fault \S+ xid 1 79)", output)
        fill = re.search(r"\$ (env -i .*simcuda fill)", output)
        assert fault
        assert fill
        subprocess.run([BIN / "gpuslice-sim", *fault[1].split()], check=True)
        kept.wait_for_output("0 of 28 units allocatable")
        filled = subprocess.run(["sh", "-c", fill[1]], capture_output=True, text=True, check=True)
        assert '"error":"CUDA_ERROR_OUT_OF_MEMORY"' in filled.stdout.replace(": ", ":")
        kept.send(number)
        assert kept.wait() == 0
    assert list(scratch.iterdir()) == []
    eventually(lambda: processes_of(scratch) == [], "its processes are gone")
