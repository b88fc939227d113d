"""Processes that may open few files."""

from __future__ import annotations

import re
import resource
import signal
from pathlib import Path

import pytest

from gpuslice.codes import Code

from .rig import AGENT, BIN, GPU, PLUGIN, Rig

PROGRAMS = {
    AGENT: Rig.program(AGENT),
    PLUGIN: Rig.program(PLUGIN),
    "mps-control-daemon": [str(BIN / "mps-control-daemon")],
    "gpu-feature-discovery": [str(BIN / "gpu-feature-discovery"), "--output-file="],
}


def limited(argv: list[str], *limits: str) -> list[str]:
    commands = "; ".join(f"ulimit {limit}" for limit in limits)
    return ["sh", "-c", f'{commands}; exec "$@"', "sh", *argv]


@pytest.mark.parametrize("limit", [12, 18])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_limit_that_is_too_low_is_an_error_with_a_remedy(
    program: str, limit: int, rig: Rig
) -> None:
    with rig.run(limited(PROGRAMS[program], f"-n {limit}"), name="program") as process:
        assert process.wait() == 1
        assert f"{Code.TOO_FEW_DESCRIPTORS}: this process may open {limit} files" in (
            process.output()
        )
        assert "LimitNOFILE" in process.output()


def test_the_soft_limit_is_raised_to_the_hard_limit(rig: Rig) -> None:
    argv = limited(rig.program(PLUGIN), "-Sn 12", "-Hn 300")
    with rig.run(argv, name="plugin") as plugin:
        rig.wait_for_resources(GPU)
        limits = Path(f"/proc/{plugin.pid}/limits").read_text()
        assert re.search(r"^Max open files +300 +300 ", limits, re.MULTILINE)


def test_devices_are_unhealthy_with_a_reason_while_no_file_can_be_opened(rig: Rig) -> None:
    gpus = {gpu.uuid for gpu in rig.node.gpus()}
    with rig.plugin() as agent:
        rig.wait_for_resources(GPU)
        before = resource.prlimit(agent.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, (4, before[1]))
        agent.send(signal.SIGHUP)
        rig.wait_for_healthy(GPU, set())
        assert agent.logged(Code.GPU_NOT_WATCHED) + agent.logged(Code.TOO_FEW_DESCRIPTORS) >= 1
        resource.prlimit(agent.pid, resource.RLIMIT_NOFILE, before)
        rig.wait_for_healthy(GPU, gpus)
