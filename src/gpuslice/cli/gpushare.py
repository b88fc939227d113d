"""`gpushare-device-plugin-v2`: the agent with the command line of gpushare's device plugin."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from gpuslice.cli.agent import run_agent_with
from gpuslice.cli.daemon_program import DaemonProgram, read_flags, running_daemon
from gpuslice.codes import Code
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.option_definition import Option, OptionGroup, OptionKind, options_in
from gpuslice.config.option_values import OptionValue, OptionValues, collect_option_values
from gpuslice.config.settings import HealthSettings, MemoryMps, MpsCheck, Settings
from gpuslice.config.startup_options import startup_options
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.rules import Advertise, MemoryRule, Rules
from gpuslice.slicing.units import MemoryUnit
from gpuslice.telemetry.logs import Logger, LogLevel

log = Logger(__name__)

_DEFAULT_UNIT = "GiB"
_DEFAULT_PIPE = "/tmp/nvidia-mps"  # noqa: S108 (the default of MPS itself)
_DEBUG_VERBOSITY = 4
# The socket, the address for the kubelet's probes, and MPS as gpushare does not have it.
_BY_VARIABLE = (
    "kubelet-socket",
    "metrics-address",
    "mps-mode",
    "mps-root",
    "mps-namespaces",
    "mps-shm",
    "memory-reserve",
)
_NO_EFFECT = "No effect: the plugin needs no list of pods."
_STDERR = "No effect: logs always go to standard error."

# gpushare's plugin finds the pod of a container with these. Here, device IDs contain the GPU.
_POD_LIST_OPTIONS = (
    Option("query-kubelet", _NO_EFFECT, kind=OptionKind.SWITCH),
    Option("kubelet-address", _NO_EFFECT),
    Option("kubelet-port", _NO_EFFECT, kind=OptionKind.NUMBER),
    Option("client-cert", _NO_EFFECT),
    Option("client-key", _NO_EFFECT),
    Option("token", _NO_EFFECT),
    Option("timeout", _NO_EFFECT, kind=OptionKind.NUMBER),
)
_GROUPS = (
    OptionGroup(
        "Memory units",
        (
            Option(
                "memory-unit",
                "Size of one unit: GiB, MiB, or a size such as 256MiB.",
                _DEFAULT_UNIT,
            ),
            Option("mps", "Limit containers with MPS.", "false", kind=OptionKind.SWITCH),
            Option(
                "mps-pipe",
                "Pipe directory of the MPS daemon of the node. It implies -mps.",
                _DEFAULT_PIPE,
            ),
            Option("health-check", "Check the health of GPUs.", "false", kind=OptionKind.SWITCH),
        ),
    ),
    OptionGroup("List of pods", _POD_LIST_OPTIONS),
    OptionGroup(
        "Logs",
        (
            Option(
                "v",
                f"Log level: {_DEBUG_VERBOSITY} or more for debug.",
                "0",
                kind=OptionKind.NUMBER,
            ),
            Option("logtostderr", _STDERR, kind=OptionKind.SWITCH),
            Option("alsologtostderr", _STDERR, kind=OptionKind.SWITCH),
            Option("stderrthreshold", _STDERR),
            Option("log_dir", _STDERR),
            Option("log_backtrace_at", "No effect."),
            Option("vmodule", "No effect."),
        ),
    ),
)
GPUSHARE_OPTIONS = options_in(_GROUPS)
PROGRAM = DaemonProgram(
    "gpushare-device-plugin-v2",
    "Advertise the memory of GPUs to the kubelet, as gpushare's device plugin does.",
    _GROUPS,
)
# Like gpushare's plugin, it waits for GPUs, and the pipe directory may be missing in its container.
# An extender that knows GPUs places its pods.
DEFAULTS = Settings(
    rules=Rules(memory=MemoryRule(advertise=Advertise.ALL)),
    memory_mps=MemoryMps(check=MpsCheck.AUTO),
    health=HealthSettings(enabled=False),
    fail_on_init_error=False,
)


def main() -> None:
    flags = read_flags(PROGRAM, sys.argv[1:])
    with running_daemon(PROGRAM, _log_level(flags)):
        _log_flags_without_effect(flags)
        values = agent_values(flags, os.environ)
        run_agent_with(values, DEFAULTS, startup_options(values))


def agent_values(flags: Mapping[str, str], environment: Mapping[str, str]) -> OptionValues:
    """The options of the agent. Of its environment variables, only those below apply."""
    agent_flags = {
        "memory-unit": _memory_unit(flags.get("memory-unit", _DEFAULT_UNIT)),
        "health-checks": flags.get("health-check", "false"),
    }
    if flags.get("mps", str("mps-pipe" in flags).lower()) == "true":
        agent_flags["mps-pipe"] = flags.get("mps-pipe", _DEFAULT_PIPE)
        if not agent_flags["mps-pipe"]:
            raise ConfigError("mps-pipe", "", "set the pipe directory, or remove -mps")
    by_variable = [option for option in OPTIONS if option.name in _BY_VARIABLE]
    return {
        **collect_option_values(agent_flags, {}, OPTIONS),
        **collect_option_values({}, environment, by_variable),
    }


def _log_level(flags: Mapping[str, str]) -> OptionValues:
    is_debug = int(flags.get("v", "0")) >= _DEBUG_VERBOSITY
    level = LogLevel.DEBUG if is_debug else LogLevel.INFO
    return {"log-level": OptionValue(level.value, "v")}


def _memory_unit(text: str) -> str:
    try:
        MemoryUnit.parse(text)
    except SlicingError as error:
        log.warning(
            Code.CONFIGURATION_WARNING,
            f"memory-unit {text!r} is not valid, using {_DEFAULT_UNIT}",
            reason=error,
        )
        return _DEFAULT_UNIT
    return text


def _log_flags_without_effect(flags: Mapping[str, str]) -> None:
    ignored = sorted(option.name for option in _POD_LIST_OPTIONS if option.name in flags)
    if ignored:
        log.info(
            Code.FLAG_IGNORED,
            "these flags have no effect: no list of pods is needed",
            flags=",".join(ignored),
        )
