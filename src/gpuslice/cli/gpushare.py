"""`gpushare-device-plugin-v2`: the agent behind gpushare's own command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from gpuslice.cli.agent import run
from gpuslice.cli.goflags import Flag, FlagError, Parsed, parse, usage
from gpuslice.cli.outcome import exit_with_message
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.option_values import OptionValues, collect_option_values
from gpuslice.config.settings import HealthSettings, MemorySettings, MpsCheck, Settings
from gpuslice.config.startup_options import StartupOptions
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.units import MemoryUnit
from gpuslice.telemetry.logs import Logger, LogLevel, configure_logs

log = Logger(__name__)

PROGRAM = "gpushare-device-plugin-v2"
_DEFAULT_PIPE = "/tmp/nvidia-mps"  # noqa: S108 (where MPS itself looks by default)
_DEBUG_VERBOSITY = 4

_GPUSHARE_FLAGS = (
    Flag("memory-unit", "what a request of 1 means: GiB, MiB, or a size as 256MiB", "GiB"),
    Flag("mps", "bind containers to their share by MPS", False),
    Flag(
        "mps-pipe",
        "pipe directory of the node's MPS daemon; giving it turns -mps on",
        _DEFAULT_PIPE,
    ),
    Flag("health-check", "watch GPUs for errors", False),
)
# Upstream finds a container's pod by asking around; device ids name their GPU, so nobody is asked.
_WITHOUT_EFFECT = (
    Flag("query-kubelet", "without effect: no pod list is needed", False),
    Flag("kubelet-address", "without effect: no pod list is needed", "0.0.0.0"),  # noqa: S104
    Flag("kubelet-port", "without effect: no pod list is needed", 10250),
    Flag("client-cert", "without effect: no pod list is needed", ""),
    Flag("client-key", "without effect: no pod list is needed", ""),
    Flag("token", "without effect: no pod list is needed", ""),
    Flag("timeout", "without effect: no pod list is needed", 10),
)
_GLOG_FLAGS = (
    Flag("v", f"log level: {_DEBUG_VERBOSITY} and more log details", 0),
    Flag("logtostderr", "without effect: logs always go to standard error", False),
    Flag("alsologtostderr", "without effect: logs always go to standard error", False),
    Flag("stderrthreshold", "without effect: logs always go to standard error", "ERROR"),
    Flag("log_dir", "without effect: logs always go to standard error", ""),
    Flag("log_backtrace_at", "without effect", ""),
    Flag("vmodule", "without effect", ""),
)
FLAGS = _GPUSHARE_FLAGS + _WITHOUT_EFFECT + _GLOG_FLAGS


def main() -> None:
    args = sys.argv[1:]
    if any(arg in ("-h", "-help", "--help", "--h") for arg in args):
        print(usage(PROGRAM, FLAGS))
        return
    try:
        parsed = parse(FLAGS, args)
    except FlagError as error:
        print(f"{error}\n{usage(PROGRAM, FLAGS)}", file=sys.stderr)
        sys.exit(2)
    with exit_with_message(PROGRAM):
        configure_logs(LogLevel.DEBUG if parsed.number("v") >= _DEBUG_VERBOSITY else LogLevel.INFO)
        _note_flags_without_effect(parsed)
        run(given_by(parsed, os.environ), DEFAULTS, StartupOptions())


# As upstream: a node without GPUs is waited for, and the pipe directory need not be mounted here.
DEFAULTS = Settings(
    memory=MemorySettings(mps_check=MpsCheck.AUTO),
    health=HealthSettings(enabled=False),
    fail_on_init_error=False,
)


def given_by(parsed: Parsed, environment: Mapping[str, str]) -> OptionValues:
    """Of the agent's own options only the kubelet's socket can be moved by a variable."""
    flags = {
        "memory-unit": _memory_unit(parsed.text("memory-unit")),
        "health-checks": str(parsed.switch("health-check")).lower(),
    }
    if _mps_wanted(parsed):
        flags["mps-pipe"] = parsed.text("mps-pipe")
        if not flags["mps-pipe"]:
            raise ConfigError("mps-pipe", "", "name the pipe directory, or leave -mps out")
    socket = [option for option in OPTIONS if option.name == "kubelet-socket"]
    return {
        **collect_option_values(flags, {}, OPTIONS),
        **collect_option_values({}, environment, socket),
    }


def _mps_wanted(parsed: Parsed) -> bool:
    if "mps" in parsed.given:
        return parsed.switch("mps")
    return "mps-pipe" in parsed.given


def _memory_unit(text: str) -> str:
    try:
        MemoryUnit.parse(text)
    except SlicingError as error:
        log.warning("using GiB", reason=error)
        return "GiB"
    return text


def _note_flags_without_effect(parsed: Parsed) -> None:
    idle: Sequence[str] = sorted(parsed.given & {flag.name for flag in _WITHOUT_EFFECT})
    if idle:
        log.info("flags without effect: device ids name their GPU", flags=",".join(idle))
