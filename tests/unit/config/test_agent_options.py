"""Every row of the table: a flag, its aliases, its variables, its key and what they do."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pytest

from gpuslice.cli.go_flags import parse_flags
from gpuslice.cli.nvidia import DEFAULTS
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import load_settings
from gpuslice.config.option_definition import OptionKind
from gpuslice.config.option_values import collect_option_values
from gpuslice.config.settings import DeviceId, DeviceList, Discovery, MpsCheck, Settings
from gpuslice.slicing.limits import ThreadShare
from gpuslice.slicing.rules import ALL, MigStrategy, Policy
from gpuslice.slicing.units import MemoryUnit

ENVVAR = frozenset({DeviceList.ENVVAR})
BOTH_CDI = frozenset({DeviceList.CDI_ANNOTATIONS, DeviceList.CDI_CRI})


@dataclass(frozen=True)
class Row:
    """A setting: what NVIDIA's plugin has by default, and another value with its meaning."""

    flag: str
    variable: str
    attribute: str
    default: object
    text: str
    value: object
    yaml: str = ""
    aliases: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.flag


NVIDIA = [
    Row(
        "mig-strategy", "MIG_STRATEGY", "rules.mig_strategy", MigStrategy.NONE, "mixed",
        MigStrategy.MIXED, "flags: {migStrategy: mixed}", wrong=("both", "Single", ""),
    ),
    Row(
        "fail-on-init-error", "FAIL_ON_INIT_ERROR", "fail_on_init_error", True, "false", False,
        "flags: {failOnInitError: false}", wrong=("no", "2"),
    ),
    Row(
        "driver-root", "NVIDIA_DRIVER_ROOT", "containers.driver_root", "/", "/run/nvidia/driver",
        "/run/nvidia/driver", "flags: {nvidiaDriverRoot: /run/nvidia/driver}",
        aliases=("nvidia-driver-root",), wrong=("run",),
    ),
    Row(
        "dev-root", "NVIDIA_DEV_ROOT", "containers.dev_root", "/", "/dev-root", "/dev-root",
        "flags: {nvidiaDevRoot: /dev-root}", aliases=("nvidia-dev-root",), wrong=("dev",),
    ),
    Row(
        "pass-device-specs", "PASS_DEVICE_SPECS", "containers.pass_device_specs", False, "true",
        True, "flags: {plugin: {passDeviceSpecs: true}}", wrong=("on",),
    ),
    Row(
        "device-list-strategy", "DEVICE_LIST_STRATEGY", "containers.device_list", ENVVAR,
        "cdi-annotations,cdi-cri", BOTH_CDI,
        "flags: {plugin: {deviceListStrategy: [cdi-annotations, cdi-cri]}}",
        wrong=("env", "envvar,cdi", ""),
    ),
    Row(
        "device-id-strategy", "DEVICE_ID_STRATEGY", "containers.device_id", DeviceId.UUID, "index",
        DeviceId.INDEX, "flags: {plugin: {deviceIDStrategy: index}}", wrong=("name",),
    ),
    Row(
        "gdrcopy-enabled", "GDRCOPY_ENABLED", "containers.gdrcopy", False, "true", True,
        "flags: {gdrcopyEnabled: true}", wrong=("yes",),
    ),
    Row(
        "gds-enabled", "GDS_ENABLED", "containers.gds", False, "true", True,
        "flags: {gdsEnabled: true}", wrong=("yes",),
    ),
    Row(
        "mofed-enabled", "MOFED_ENABLED", "containers.mofed", False, "true", True,
        "flags: {mofedEnabled: true}", wrong=("yes",),
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
        aliases=("nvidia-ctk-path",), variables=("NVIDIA_CTK_PATH",), wrong=("nvidia-ctk",),
    ),
    Row(
        "driver-root-ctr-path", "DRIVER_ROOT_CTR_PATH", "cdi.container_driver_root",
        "/driver-root", "/host", "/host", "flags: {plugin: {containerDriverRoot: /host}}",
        aliases=("container-driver-root",), variables=("CONTAINER_DRIVER_ROOT",), wrong=("host",),
    ),
    Row(
        "mps-root", "MPS_ROOT", "containers.mps_root", None, "/run/nvidia/mps", "/run/nvidia/mps",
        "flags: {mpsRoot: /run/nvidia/mps}", wrong=("mps",),
    ),
    Row(
        "shared-devices-allocation-policy", "SHARED_DEVICES_ALLOCATION_POLICY", "policy",
        Policy.DISTRIBUTED, "packed", Policy.PACKED,
        "flags: {plugin: {sharedDevicesAllocationPolicy: packed}}", wrong=("random",),
    ),
    Row(
        "device-discovery-strategy", "DEVICE_DISCOVERY_STRATEGY", "discovery", Discovery.AUTO,
        "tegra", Discovery.TEGRA, "flags: {deviceDiscoveryStrategy: tegra}", wrong=("wsl",),
    ),
    Row(
        "imex-channel-ids", "IMEX_CHANNEL_IDS", "containers.imex_channels", (), "0", (0,),
        "imex: {channelIDs: [0]}", wrong=("1", "0,1", "0,0", "x"),
    ),
    Row(
        "imex-required", "IMEX_REQUIRED", "containers.imex_required", False, "true", True,
        "imex: {required: true}", wrong=("maybe",),
    ),
    Row(
        "kubelet-socket", "KUBELET_SOCKET", "kubelet_socket",
        "/var/lib/kubelet/device-plugins/kubelet.sock", "/k.sock", "/k.sock", wrong=("k.sock",),
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
        "resource", "GPUSLICE_RESOURCE", "memory.resource", "aliyun.com/gpu-mem", "a.com/b",
        "a.com/b", "sharing: {memory: {resource: a.com/b}}", wrong=("gpu-mem", ""),
    ),
    Row(
        "memory-devices", "GPUSLICE_MEMORY_DEVICES", "rules.memory", None, "all", ALL,
        "sharing: {memory: {devices: all}}", wrong=("some", "0", "0,x", "0:1,2"),
    ),
    Row(
        "memory-unit", "GPUSLICE_MEMORY_UNIT", "memory.unit", MemoryUnit(1024), "256MiB",
        MemoryUnit(256), "sharing: {memory: {unit: 256MiB}}", wrong=("6GB", ""),
    ),
    Row(
        "memory-reserve", "GPUSLICE_MEMORY_RESERVE", "memory.reserve_mib", 0, "1GiB", 1024,
        "sharing: {memory: {reserve: 1GiB}}", wrong=("x", "512"),
    ),
    Row(
        "threads", "GPUSLICE_THREADS", "memory.threads", ThreadShare.PROPORTIONAL, "none",
        ThreadShare.NONE, "sharing: {memory: {threads: none}}", wrong=("half",),
    ),
    Row(
        "mps-pipe", "GPUSLICE_MPS_PIPE", "memory.mps_pipe", None, "/run/mps", "/run/mps",
        "sharing: {memory: {mps: {pipeDirectory: /run/mps}}}", wrong=("mps", "/" + "x" * 99),
    ),
    Row(
        "mps-check", "GPUSLICE_MPS_CHECK", "memory.mps_check", MpsCheck.REQUIRE, "off",
        MpsCheck.OFF, "sharing: {memory: {mps: {check: off}}}", wrong=("maybe",),
    ),
    Row(
        "health-checks", "GPUSLICE_HEALTH_CHECKS", "health.enabled", True, "false", False,
        "health: {enabled: false}", wrong=("never",),
    ),
    Row(
        "nested", "NESTED", "rules.nested", False, "host", True, "flags: {nested: host}",
        wrong=("inside",),
    ),
    Row(
        "nested-dir", "NESTED_DIR", "nested_directory", "/var/lib/gpuslice/nested", "/n", "/n",
        "flags: {nestedDir: /n}", wrong=("n",),
    ),
    Row(
        "cdi-directory", "GPUSLICE_CDI_DIRECTORY", "cdi.directory", "/var/run/cdi", "/etc/cdi",
        "/etc/cdi", wrong=("cdi",),
    ),
    Row(
        "cdi-remove-on-exit", "GPUSLICE_CDI_REMOVE_ON_EXIT", "cdi.remove_on_exit", False, "true",
        True, wrong=("sometimes",),
    ),
]  # fmt: skip

ROWS = NVIDIA + OURS
every_row = pytest.mark.parametrize("row", ROWS, ids=str)


def value_of(settings: Settings, row: Row) -> object:
    return reduce(getattr, row.attribute.split("."), settings)


def loaded(
    args: tuple[str, ...] = (), env: dict[str, str] | None = None, file: Path | None = None
) -> Settings:
    given = collect_option_values(parse_flags(OPTIONS, args), env or {}, OPTIONS)
    return load_settings(given, DEFAULTS, file).settings


@every_row
def test_nothing_said_is_the_default(row: Row) -> None:
    assert value_of(loaded(), row) == row.default


@every_row
def test_a_flag_speaks_under_each_of_its_names(row: Row) -> None:
    for name in (row.flag, *row.aliases):
        assert value_of(loaded((f"--{name}={row.text}",)), row) == row.value
        assert value_of(loaded((f"-{name}={row.text}",)), row) == row.value


@every_row
def test_a_variable_speaks_under_each_of_its_names(row: Row) -> None:
    for name in (row.variable, *row.variables):
        assert value_of(loaded(env={name: row.text}), row) == row.value


@every_row
def test_a_variable_without_a_value_says_nothing(row: Row) -> None:
    assert value_of(loaded(env={row.variable: ""}), row) == row.default


@pytest.mark.parametrize("row", [row for row in ROWS if row.yaml], ids=str)
def test_the_file_speaks(row: Row, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(row.yaml)
    assert value_of(loaded(file=file), row) == row.value


@every_row
def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(row: Row, tmp_path: Path) -> None:
    default = next(option for option in OPTIONS if option.name == row.flag).default
    plain = {"the driver root": "/", "": ""}.get(default, default)
    if row.flag == "memory-devices":
        plain = "none"
    file = tmp_path / "config.yaml"
    file.write_text(row.yaml)
    other = {row.variable: row.text}
    if plain:
        assert value_of(loaded(env={row.variable: plain}, file=file), row) == row.default
    assert value_of(loaded((f"--{row.flag}={plain}",), other, file), row) == row.default


@pytest.mark.parametrize(
    ("row", "wrong"), [(row, wrong) for row in ROWS for wrong in row.wrong], ids=str
)
def test_a_wrong_value_is_refused_with_its_source_and_value(row: Row, wrong: str) -> None:
    flag = [f"--{row.flag}={wrong}"]
    if next(option for option in OPTIONS if option.name == row.flag).kind is OptionKind.SWITCH:
        flag = []  # the parser of the command line refuses it
    if flag:
        with pytest.raises(ConfigError, match=row.flag):
            loaded(tuple(flag))
    if wrong:
        with pytest.raises(ConfigError, match=f"{row.flag}|{row.variable}"):
            loaded(env={row.variable: wrong})


def test_every_option_that_is_a_setting_has_a_row_here() -> None:
    elsewhere = {
        # How the agent finds its settings and speaks: test_options.py, test_typed.py.
        "config-file", "lenient", "config-file-srcdir", "node-name", "node-label", "pod-name",
        "default-config", "fallback-strategies", "kubeconfig", "labels", "metrics-address",
        "log-level", "log-format",
        # Settings that mean something only together: test_load.py.
        "disabled-xids", "enabled-xids", "nested-env", "nested-devices",
    }  # fmt: skip
    assert {option.name for option in OPTIONS} == {row.flag for row in ROWS} | elsewhere


def test_a_row_has_a_key_of_the_file_where_the_option_has_one() -> None:
    with_key = {option.name for option in OPTIONS if option.key}
    assert with_key == {row.flag for row in ROWS if row.yaml} | {"nested-env"}


def test_names_and_variables_are_used_once() -> None:
    names = [name for option in OPTIONS for name in (option.name, *option.aliases)]
    variables = [name for option in OPTIONS for name in option.variables]
    assert len(names) == len(set(names))
    assert len(variables) == len(set(variables))
    assert all(option.variables for option in OPTIONS)


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
def test_a_boolean_variable_is_true_as_go_has_it(text: str) -> None:
    assert loaded(env={"PASS_DEVICE_SPECS": text}).containers.pass_device_specs


@pytest.mark.parametrize("text", ["0", "f", "F", "false", "FALSE", "False"])
def test_a_boolean_variable_is_false_as_go_has_it(text: str) -> None:
    assert not loaded(env={"FAIL_ON_INIT_ERROR": text}).fail_on_init_error


def test_the_first_of_two_variables_of_an_option_wins() -> None:
    env = {"NVIDIA_CTK_PATH": "/old", "NVIDIA_CDI_HOOK_PATH": "/new"}
    assert loaded(env=env).cdi.hook_path == "/new"


def test_the_dev_root_follows_the_driver_root_unless_it_is_said() -> None:
    assert loaded(("--driver-root=/d",)).containers.dev_root == "/d"
    assert loaded(("--driver-root=/d", "--dev-root=/e")).containers.dev_root == "/e"


def test_an_empty_kubelet_socket_by_flag_means_never_register() -> None:
    assert loaded(("--kubelet-socket=",)).kubelet_socket == ""


def test_a_policy_of_our_own_is_accepted() -> None:
    assert loaded(("--shared-devices-allocation-policy=spread",)).policy is Policy.SPREAD
