"""bench/advertising.py simulates every setting on the same pods."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "advertising.py"


def test_each_setting_has_a_row_and_one_gpu_fails_fewer_pods_than_all_without_delays() -> None:
    done = subprocess.run(
        [sys.executable, BENCH, "--seeds", "1"], capture_output=True, text=True, check=True
    )
    busy = done.stdout.rpartition("###")[2]
    failed = {
        name: int(count.replace(",", ""))
        for name, count in re.findall(r"^\| (\w.*?) \| [\d,]+ \| ([\d,]+) \|", busy, re.MULTILINE)
    }
    assert len(failed) == 5
    assert failed["one-gpu: the emptiest (default)"] < failed["all, rejections not delayed"]
