"""Every option of the agent: its flag, aliases, variables, file key and effect."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pytest

from gpuslice.cli.agent import AGENT_DEFAULTS
from gpuslice.cli.go_flags import parse_flags
from gpuslice.cli.nvidia import DEFAULTS
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import load_settings
from gpuslice.config.option_definition import OptionKind
from gpuslice.config.option_values import collect_option_values
from gpuslice.config.settings import (
    HOST_SHM,
    Bind,
    DeviceId,
    DeviceList,
    Discovery,
    MpsCheck,
    Settings,
)
from gpuslice.config.watchdog_settings import WatchdogMode
from gpuslice.slicing.rules import Advertise, IdForm, MemoryRule, MigStrategy, Policy
from gpuslice.slicing.thread_annotations import ThreadAnnotations
from gpuslice.slicing.threads import ThreadStrategy
from gpuslice.slicing.units import MemoryUnit

ENVVAR = frozenset({DeviceList.ENVVAR})
BOTH_CDI = frozenset({DeviceList.CDI_ANNOTATIONS, DeviceList.CDI_CRI})


@dataclass(frozen=True)
class Row:
    """A setting: the default of NVIDIA's plugin, and another value as text and as setting.

    Settings of memory units have the default of `gpuslice agent`, because NVIDIA's plugin has none.
    """

    flag: str
    variable: str
    attribute: str
    default: object
    text: str
    value: object
    yaml: str = ""
    aliases: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()

    @property
    def defaults(self) -> Settings:
        return AGENT_DEFAULTS if self.attribute.startswith("rules.memory.") else DEFAULTS

    def __str__(self) -> str:
        return self.flag


NVIDIA = [
    Row(
        "mig-strategy", "MIG_STRATEGY", "rules.mig_strategy", MigStrategy.NONE, "mixed",
        MigStrategy.MIXED, "flags: {migStrategy: mixed}", invalid=("both", "Single", ""),
    ),
    Row(
        "fail-on-init-error", "FAIL_ON_INIT_ERROR", "fail_on_init_error", True, "false", False,
        "flags: {failOnInitError: false}", invalid=("no", "2"),
    ),
    Row(
        "driver-root", "NVIDIA_DRIVER_ROOT", "containers.driver_root", "/", "/run/nvidia/driver",
        "/run/nvidia/driver", "flags: {nvidiaDriverRoot: /run/nvidia/driver}",
        aliases=("nvidia-driver-root",), invalid=("run",),
    ),
    Row(
        "dev-root", "NVIDIA_DEV_ROOT", "containers.dev_root", "/", "/dev-root", "/dev-root",
        "flags: {nvidiaDevRoot: /dev-root}", aliases=("nvidia-dev-root",), invalid=("dev",),
    ),
    Row(
        "pass-device-specs", "PASS_DEVICE_SPECS", "containers.pass_device_specs", False, "true",
        True, "flags: {plugin: {passDeviceSpecs: true}}", invalid=("on",),
    ),
    Row(
        "device-list-strategy", "DEVICE_LIST_STRATEGY", "containers.device_list", ENVVAR,
        "cdi-annotations,cdi-cri", BOTH_CDI,
        "flags: {plugin: {deviceListStrategy: [cdi-annotations, cdi-cri]}}",
        invalid=("env", "envvar,cdi", ""),
    ),
    Row(
        "device-id-strategy", "DEVICE_ID_STRATEGY", "containers.device_id", DeviceId.UUID, "index",
        DeviceId.INDEX, "flags: {plugin: {deviceIDStrategy: index}}", invalid=("name",),
    ),
    Row(
        "gdrcopy-enabled", "GDRCOPY_ENABLED", "containers.gdrcopy", False, "true", True,
        "flags: {gdrcopyEnabled: true}", invalid=("yes",),
    ),
    Row(
        "gds-enabled", "GDS_ENABLED", "containers.gds", False, "true", True,
        "flags: {gdsEnabled: true}", invalid=("yes",),
    ),
    Row(
        "mofed-enabled", "MOFED_ENABLED", "containers.mofed", False, "true", True,
        "flags: {mofedEnabled: true}", invalid=("yes",),
    ),
    Row(
        "cdi-annotation-prefix", "CDI_ANNOTATION_PREFIX", "containers.cdi_annotation_prefix",
        "cdi.k8s.io/", "example.com/", "example.com/",
        "flags: {plugin: {cdiAnnotationPrefix: example.com/}}",
    ),
    Row(
        "nvidia-cdi-hook-path", "NVIDIA_CDI_HOOK_PATH", "cdi.hook_path", "/usr/bin/nvidia-ctk",
        "/opt/nvidia-cdi-hook", "/opt/nvidia-cdi-hook",
        "flags: {plugin: {nvidiaCTKPath: /opt/nvidia-cdi-hook}}",
        aliases=("nvidia-ctk-path",), variables=("NVIDIA_CTK_PATH",), invalid=("nvidia-ctk",),
    ),
    Row(
        "driver-root-ctr-path", "DRIVER_ROOT_CTR_PATH", "cdi.container_driver_root",
        "/driver-root", "/host", "/host", "flags: {plugin: {containerDriverRoot: /host}}",
        aliases=("container-driver-root",), variables=("CONTAINER_DRIVER_ROOT",), invalid=("host",),
    ),
    Row(
        "mps-root", "MPS_ROOT", "containers.mps_root", None, "/run/nvidia/mps", "/run/nvidia/mps",
        "flags: {mpsRoot: /run/nvidia/mps}", invalid=("mps",),
    ),
    Row(
        "shared-devices-allocation-policy", "SHARED_DEVICES_ALLOCATION_POLICY", "policy",
        Policy.DISTRIBUTED, "packed", Policy.PACKED,
        "flags: {plugin: {sharedDevicesAllocationPolicy: packed}}", invalid=("random",),
    ),
    Row(
        "device-discovery-strategy", "DEVICE_DISCOVERY_STRATEGY", "discovery", Discovery.AUTO,
        "tegra", Discovery.TEGRA, "flags: {deviceDiscoveryStrategy: tegra}", invalid=("wsl",),
    ),
    Row(
        "bind", "GPUSLICE_BIND", "bind", Bind.ENV, "cdi", Bind.CDI, "flags: {bind: cdi}",
        invalid=("CDI", "none"),
    ),
    Row(
        "thread-annotations", "GPUSLICE_THREAD_ANNOTATIONS", "thread_annotations",
        ThreadAnnotations.OFF, "lower", ThreadAnnotations.LOWER,
        "flags: {threadAnnotations: lower}", invalid=("on", "raise"),
    ),
    Row(
        "imex-channel-ids", "IMEX_CHANNEL_IDS", "containers.imex_channels", (), "0", (0,),
        "imex: {channelIDs: [0]}", invalid=("1", "0,1", "0,0", "x"),
    ),
    Row(
        "imex-required", "IMEX_REQUIRED", "containers.imex_required", False, "true", True,
        "imex: {required: true}", invalid=("maybe",),
    ),
    Row(
        "kubelet-socket", "KUBELET_SOCKET", "kubelet_socket",
        "/var/lib/kubelet/device-plugins/kubelet.sock", "/k.sock", "/k.sock", invalid=("k.sock",),
    ),
    Row(
        "cdi-feature-flags", "CDI_FEATURE_FLAGS", "cdi.feature_flags", frozenset(),
        "disable-nvsandboxutils,disable-ipc-discoverer",
        frozenset({"disable-nvsandboxutils", "disable-ipc-discoverer"}),
    ),
    Row(
        "cdi-disable-hooks", "CDI_DISABLE_HOOKS", "cdi.disabled_hooks", frozenset(), "all",
        frozenset({"all"}),
    ),
]  # fmt: skip

OURS = [
    Row(
        "resource", "GPUSLICE_RESOURCE", "rules.memory.resource", "aliyun.com/gpu-mem", "a.com/b",
        "a.com/b", "sharing: {memory: {resource: a.com/b}}", invalid=("gpu-mem", ""),
    ),
    Row(
        "memory-devices", "GPUSLICE_MEMORY_DEVICES", "rules.memory", None, "all", MemoryRule(),
        "sharing: {memory: {devices: all}}", invalid=("some", "0", "0,x", "0:1,2"),
    ),
    Row(
        "memory-unit", "GPUSLICE_MEMORY_UNIT", "rules.memory.unit", MemoryUnit(1024), "256MiB",
        MemoryUnit(256), "sharing: {memory: {unit: 256MiB}}", invalid=("6GB", ""),
    ),
    Row(
        "memory-reserve", "GPUSLICE_MEMORY_RESERVE", "rules.memory.reserve_mib", None, "1GiB",
        1024,
        "sharing: {memory: {reserve: 1GiB}}", invalid=("x", "512"),
    ),
    Row(
        "threads", "GPUSLICE_THREADS", "rules.memory.threads", ThreadStrategy.PROPORTIONAL, "none",
        ThreadStrategy.NONE, "sharing: {memory: {threads: none}}",
        invalid=("half", "", "30", "0%", "101%", "0 SMs", "1.5%", "explicit"),
    ),
    Row(
        "memory-advertise", "GPUSLICE_MEMORY_ADVERTISE", "rules.memory.advertise",
        Advertise.ONE_GPU, "all", Advertise.ALL, "sharing: {memory: {advertise: all}}",
        invalid=("two-gpus", ""),
    ),
    Row(
        "memory-ids", "GPUSLICE_MEMORY_IDS", "rules.memory.ids", IdForm.AUTO, "short", IdForm.SHORT,
        "sharing: {memory: {ids: short}}", invalid=("tiny", ""),
    ),
    Row(
        "mps-shm", "GPUSLICE_MPS_SHM", "memory_mps.shm", None, "host", HOST_SHM,
        "sharing: {memory: {mps: {shm: host}}}", invalid=("shm",),
    ),
    Row(
        "mps-pipe", "GPUSLICE_MPS_PIPE", "memory_mps.pipe", None, "/run/mps", "/run/mps",
        "sharing: {memory: {mps: {pipeDirectory: /run/mps}}}", invalid=("mps", "/" + "x" * 87),
    ),
    Row(
        "mps-check", "GPUSLICE_MPS_CHECK", "memory_mps.check", MpsCheck.REQUIRE, "off",
        MpsCheck.OFF, "sharing: {memory: {mps: {check: off}}}", invalid=("maybe",),
    ),
    Row(
        "health-checks", "GPUSLICE_HEALTH_CHECKS", "health.enabled", True, "false", False,
        "health: {enabled: false}", invalid=("never",),
    ),
    Row(
        "nested", "NESTED", "rules.nested", False, "host", True, "flags: {nested: host}",
        invalid=("inside",),
    ),
    Row(
        "nested-file", "NESTED_FILE", "nested_file", "/gpuslice/gpu.env", "none", None,
        "flags: {nestedFile: none}", invalid=("n", "/", "//gpu.env", "/a/../b", "/dir/"),
    ),
    Row(
        "nested-dir", "NESTED_DIR", "nested_directory", "/var/lib/gpuslice/nested", "/n", "/n",
        "flags: {nestedDir: /n}", invalid=("n",),
    ),
    Row(
        "mps-hide-privileged-socket", "GPUSLICE_MPS_HIDE_PRIVILEGED_SOCKET",
        "containers.mps_hide_privileged_socket", True, "false", False,
        "mps: {hidePrivilegedSocket: false}", invalid=("no",),
    ),
    Row(
        "mps-pipe-read-only", "GPUSLICE_MPS_PIPE_READ_ONLY", "containers.mps_pipe_read_only", False,
        "true", True, "mps: {pipeReadOnly: true}", invalid=("ro",),
    ),
    Row(
        "watchdog-mode", "GPUSLICE_WATCHDOG_MODE", "watchdog.mode", WatchdogMode.REPORT, "off",
        WatchdogMode.OFF, "watchdog: {mode: off}", invalid=("kill",),
    ),
    Row(
        "watchdog-grace", "GPUSLICE_WATCHDOG_GRACE", "watchdog.grace_seconds", 30.0, "1m30s", 90.0,
        "watchdog: {grace: 1m30s}", invalid=("5", "-1s", "25h", "infinite"),
    ),
    Row(
        "watchdog-slack", "GPUSLICE_WATCHDOG_SLACK", "watchdog.slack_mib", 256, "1GiB", 1024,
        "watchdog: {slack: 1GiB}", invalid=("5", "-1GiB", "much"),
    ),
    Row(
        "container-logs", "GPUSLICE_CONTAINER_LOGS", "watchdog.container_logs",
        "/var/log/containers", "/logs", "/logs", "watchdog: {containerLogs: /logs}",
        invalid=("logs",),
    ),
    Row(
        "cdi-directory", "GPUSLICE_CDI_DIRECTORY", "cdi.directory", "/var/run/cdi", "/etc/cdi",
        "/etc/cdi", invalid=("cdi",),
    ),
    Row(
        "cdi-remove-on-exit", "GPUSLICE_CDI_REMOVE_ON_EXIT", "cdi.remove_on_exit", False, "true",
        True, invalid=("sometimes",),
    ),
]  # fmt: skip

ROWS = NVIDIA + OURS
every_row = pytest.mark.parametrize("row", ROWS, ids=str)


def loaded(
    args: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    file: Path | None = None,
    defaults: Settings = DEFAULTS,
) -> Settings:
    given = collect_option_values(parse_flags(OPTIONS, args), env or {}, OPTIONS)
    return load_settings(given, defaults, file).settings


def value(
    row: Row,
    args: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    file: Path | None = None,
) -> object:
    settings = loaded(args, env, file, row.defaults)
    return reduce(getattr, row.attribute.split("."), settings)


@every_row
def test_an_option_that_is_not_set_has_its_default(row: Row) -> None:
    assert value(row) == row.default


@every_row
def test_a_flag_works_with_each_of_its_names(row: Row) -> None:
    for name in (row.flag, *row.aliases):
        assert value(row, (f"--{name}={row.text}",)) == row.value
        assert value(row, (f"-{name}={row.text}",)) == row.value


@every_row
def test_a_variable_works_with_each_of_its_names(row: Row) -> None:
    for name in (row.variable, *row.variables):
        assert value(row, env={name: row.text}) == row.value


@every_row
def test_an_empty_variable_is_ignored(row: Row) -> None:
    assert value(row, env={row.variable: ""}) == row.default


@pytest.mark.parametrize("row", [row for row in ROWS if row.yaml], ids=str)
def test_the_file_sets_the_option(row: Row, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(row.yaml)
    assert value(row, file=file) == row.value


@every_row
def test_a_flag_overrides_a_variable_and_a_variable_the_file(row: Row, tmp_path: Path) -> None:
    default = next(option for option in OPTIONS if option.name == row.flag).default
    plain = {"the driver root": "/", "": ""}.get(default, default)
    # Their defaults differ between the programs.
    plain = {"memory-devices": "none", "bind": "env", "memory-reserve": "auto"}.get(row.flag, plain)
    file = tmp_path / "config.yaml"
    file.write_text(row.yaml)
    other = {row.variable: row.text}
    if plain:
        assert value(row, env={row.variable: plain}, file=file) == row.default
    assert value(row, (f"--{row.flag}={plain}",), other, file) == row.default


@pytest.mark.parametrize(
    ("row", "invalid"), [(row, invalid) for row in ROWS for invalid in row.invalid], ids=str
)
def test_an_invalid_value_is_rejected_with_its_source(row: Row, invalid: str) -> None:
    flag = [f"--{row.flag}={invalid}"]
    if next(option for option in OPTIONS if option.name == row.flag).kind is OptionKind.SWITCH:
        flag = []  # the parser of the command line rejects it
    if flag:
        with pytest.raises(ConfigError, match=row.flag):
            loaded(tuple(flag))
    if invalid:
        with pytest.raises(ConfigError, match=f"{row.flag}|{row.variable}"):
            loaded(env={row.variable: invalid})


def test_every_option_that_is_a_setting_has_a_row() -> None:
    elsewhere = {
        # Read at startup: test_startup_options.py, test_commands.py.
        "config-file", "lenient", "config-file-srcdir", "node-name", "node-label", "pod-name",
        "default-config", "fallback-strategies", "kubeconfig", "labels", "metrics-address",
        "log-level", "log-format",
        # Settings that depend on others: test_load.py, test_memory_mps.py.
        "disabled-xids", "enabled-xids", "nested-env", "nested-devices",
        "mps-mode",
    }  # fmt: skip
    assert {option.name for option in OPTIONS} == {row.flag for row in ROWS} | elsewhere


def test_a_row_has_a_file_key_if_the_option_has_one() -> None:
    with_key = {option.name for option in OPTIONS if option.key}
    assert with_key == {row.flag for row in ROWS if row.yaml} | {"nested-env", "mps-mode"}


def test_names_and_variables_are_used_once() -> None:
    names = [name for option in OPTIONS for name in (option.name, *option.aliases)]
    variables = [name for option in OPTIONS for name in option.variables]
    assert len(names) == len(set(names))
    assert len(variables) == len(set(variables))
    assert all(option.variables for option in OPTIONS)


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
def test_a_variable_accepts_the_true_values_of_go(text: str) -> None:
    assert loaded(env={"PASS_DEVICE_SPECS": text}).containers.pass_device_specs


@pytest.mark.parametrize("text", ["0", "f", "F", "false", "FALSE", "False"])
def test_a_variable_accepts_the_false_values_of_go(text: str) -> None:
    assert not loaded(env={"FAIL_ON_INIT_ERROR": text}).fail_on_init_error


def test_the_first_of_two_variables_of_an_option_wins() -> None:
    env = {"NVIDIA_CTK_PATH": "/old", "NVIDIA_CDI_HOOK_PATH": "/new"}
    assert loaded(env=env).cdi.hook_path == "/new"


def test_the_dev_root_is_the_driver_root_unless_it_is_set() -> None:
    assert loaded(("--driver-root=/d",)).containers.dev_root == "/d"
    assert loaded(("--driver-root=/d", "--dev-root=/e")).containers.dev_root == "/e"


def test_an_empty_kubelet_socket_turns_registration_off() -> None:
    assert loaded(("--kubelet-socket=",)).kubelet_socket == ""


def test_the_policy_spread_is_accepted() -> None:
    assert loaded(("--shared-devices-allocation-policy=spread",)).policy is Policy.SPREAD
