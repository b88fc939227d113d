"""bench/plugin.py measures. How fast anything is does not matter here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
ROWS = (
    "start to registered",
    "registered to first list",
    "Allocate p50",
    "Allocate p99",
    "GetPreferredAllocation p50",
    "RSS",
)


def bench(*args: str) -> str:
    done = subprocess.run(
        [sys.executable, BENCH / "plugin.py", "--rounds", "1", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_contenders_are_measured_side_by_side(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text("before\n<!-- bench/plugin.py -->\nold figures\n")
    printed = bench("--without-nvidia", "--tables=memory", "--sizes=32", "--update", str(document))
    assert "### 32 devices" in printed
    assert "| | gpuslice | bare grpcio |" in printed
    for row in ROWS:
        assert f"\n| {row} | " in printed
    assert document.read_text() == f"before\n<!-- bench/plugin.py -->\n\n{printed.rstrip()}\n"


def test_whole_gpus_and_replicas_are_measured_on_both_nodes() -> None:
    printed = bench("--without-nvidia", "--tables", "whole,replicas")
    for row in ("8 GPUs", "16 GPUs", "8 GPUs, 384 ids", "16 GPUs, 8,000 ids"):
        assert f"\n| {row} | gpuslice | " in printed
    for column in ("registered after", "Allocate p50", "GetPreferredAllocation of 8 p50", "RSS"):
        assert f"| {column} |" in printed


def test_an_unknown_table_is_rejected() -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "plugin.py", "--without-nvidia", "--tables", "chairs"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 1
    assert "'chairs' is unknown: choose one of whole, replicas, memory" in done.stderr


def test_any_command_can_be_measured() -> None:
    printed = bench("--", sys.executable, str(BENCH / "bare_plugin.py"), "{kubelet_socket}", "16")
    assert "### 16 devices" in printed


def test_a_command_that_does_not_register_is_reported_with_its_output() -> None:
    done = subprocess.run(
        [sys.executable, BENCH / "plugin.py", "--", "sh", "-c", "echo no such thing; exit 3"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 1
    assert "the plugin did not register; its output:\nno such thing" in done.stderr
