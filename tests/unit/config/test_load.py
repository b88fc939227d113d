"""Precedence of sources, and settings that depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.cli import gpushare, nvidia
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Loaded, load_settings
from gpuslice.config.option_values import collect_option_values
from gpuslice.config.settings import HealthSettings, Nested, Settings
from gpuslice.slicing.rules import ALL, Advertise, MemoryRule, Selection
from gpuslice.slicing.threads import ThreadStrategy
from gpuslice.slicing.units import MemoryUnit

Load = Callable[..., Loaded]
TIME_SLICING = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}\n"
MPS = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n"


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(
        yaml: str | None = None,
        env: dict[str, str] | None = None,
        defaults: Settings | None = None,
        **flags: str,
    ) -> Loaded:
        path = None
        if yaml is not None:
            path = tmp_path / "config.yaml"
            path.write_text(yaml)
        texts = {name.replace("_", "-"): text for name, text in flags.items()}
        return load_settings(collect_option_values(texts, env or {}, OPTIONS), defaults, path)

    return load


def test_without_any_source_the_defaults_apply(load: Load) -> None:
    assert load() == Loaded(Settings())


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "{}", "sharing:\nflags:\n", "version: ''"])
def test_a_file_without_content_changes_nothing(load: Load, text: str) -> None:
    assert load(text) == Loaded(Settings())


def test_dev_null_is_an_empty_file() -> None:
    assert load_settings({}, None, Path("/dev/null")) == Loaded(Settings())


def test_json_with_tabs_is_read_too(load: Load) -> None:
    loaded = load('{\n\t"sharing": {\n\t\t"memory": {"unit": "MiB"}\n\t}\n}')
    assert loaded.settings.rules.memory == MemoryRule(unit=MemoryUnit(1))


def test_an_empty_flag_overrides_the_file(load: Load) -> None:
    yaml = "sharing: {memory: {mps: {pipeDirectory: /run/mps}}}"
    assert load(yaml).settings.memory_mps.pipe == "/run/mps"
    assert load(yaml, mps_pipe="").settings.memory_mps.pipe is None


def test_containers_are_limited_to_their_memory_if_there_is_an_mps_daemon(load: Load) -> None:
    for pipe, limited in (("/run/mps", True), ("", False)):
        memory = load(mps_pipe=pipe).settings.rules.memory
        assert memory is not None
        assert memory.limited is limited


# GPUs for memory units


@pytest.mark.parametrize(
    ("defaults", "expected"),
    [
        (Settings(), MemoryRule()),
        (nvidia.DEFAULTS, None),
        (gpushare.DEFAULTS, MemoryRule(advertise=Advertise.ALL)),
    ],
    ids=["gpuslice agent", "nvidia-device-plugin", "gpushare"],
)
def test_the_program_decides_about_memory_units_if_nothing_is_set(
    load: Load, defaults: Settings, expected: MemoryRule | None
) -> None:
    assert load(defaults=defaults).settings.rules.memory == expected
    assert load("flags: {migStrategy: none}", defaults=defaults).settings.rules.memory == expected


@pytest.mark.parametrize(
    "yaml",
    [
        TIME_SLICING,
        "flags: {mpsRoot: /m}\n" + MPS,
        "resources: {gpus: [{pattern: '*A100*', name: a100}]}",
        "resources: {mig: [{pattern: 1g.5gb, name: small}]}",
    ],
)
def test_a_file_with_devices_only_turns_memory_units_off(load: Load, yaml: str) -> None:
    assert load(yaml).settings.rules.memory is None


@pytest.mark.parametrize("defaults", [Settings(), nvidia.DEFAULTS])
def test_sharing_memory_in_the_file_turns_memory_units_on(load: Load, defaults: Settings) -> None:
    for yaml in ("sharing: {memory: {}}", "sharing:\n  memory:\n"):
        assert load(yaml, defaults=defaults).settings.rules.memory == MemoryRule()
    both = TIME_SLICING.replace("sharing: {", "sharing: {memory: {devices: [0]}, ")
    assert load(both, defaults=defaults).settings.rules.memory == MemoryRule(
        Selection(references=("0",))
    )


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ({"resource": "a.com/b"}, MemoryRule(resource="a.com/b")),
        ({"memory_unit": "MiB"}, MemoryRule(unit=MemoryUnit(1))),
        ({"memory_reserve": "1GiB"}, MemoryRule(reserve_mib=1024)),
        ({"threads": "none"}, MemoryRule(threads=ThreadStrategy.NONE)),
        ({"mps_pipe": "/run/mps"}, MemoryRule(limited=True)),
        ({"memory_devices": "all"}, MemoryRule()),
    ],
)
def test_any_memory_flag_turns_memory_units_on(
    load: Load, flag: dict[str, str], expected: MemoryRule
) -> None:
    assert load(defaults=nvidia.DEFAULTS, **flag).settings.rules.memory == expected
    assert load(TIME_SLICING, **flag).settings.rules.memory == expected


def test_a_memory_variable_turns_memory_units_on(load: Load) -> None:
    env = {"GPUSLICE_MEMORY_UNIT": "MiB"}
    memory = load(env=env, defaults=nvidia.DEFAULTS).settings.rules.memory
    assert memory == MemoryRule(unit=MemoryUnit(1))


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ({"resource": ""}, "resource"),
        ({"resource": "gpu-mem"}, "resource"),
        ({"memory_unit": "6GB"}, "memory-unit"),
        ({"memory_reserve": "x"}, "memory-reserve"),
        ({"threads": "half"}, "threads"),
        ({"mps_check": "maybe"}, "mps-check"),
    ],
)
def test_options_of_memory_units_are_validated_even_if_they_are_off(
    load: Load, flag: dict[str, str], name: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: .* is not valid"):
        load(memory_devices="none", **flag)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", ALL),
        ("none", None),
        ("2", Selection(count=2)),
        ("2,", Selection(references=("2",))),
        ("0,3", Selection(references=("0", "3"))),
        (
            "GPU-AAAAAAAA-bbbb-cccc-dddd-eeeeeeeeeeee",
            Selection(references=("GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",)),
        ),
    ],
)
def test_devices_of_memory_as_a_flag(load: Load, text: str, expected: Selection | None) -> None:
    memory = load(memory_devices=text).settings.rules.memory
    assert (memory and memory.devices) == expected


@pytest.mark.parametrize(
    ("yaml", "expected"),
    [("all", ALL), ("none", None), ("2", Selection(count=2)), ("[2]", Selection(None, ("2",)))],
)
def test_devices_of_memory_in_the_file(load: Load, yaml: str, expected: Selection | None) -> None:
    memory = load(f"sharing: {{memory: {{devices: {yaml}}}}}").settings.rules.memory
    assert (memory and memory.devices) == expected


def test_a_mig_device_cannot_be_divided_into_memory_units(load: Load) -> None:
    with pytest.raises(ConfigError, match="0:1 is a MIG device; only whole GPUs"):
        load('sharing: {memory: {devices: ["0:1"]}}')


def test_memory_units_of_all_gpus_with_replicas_are_a_warning(load: Load) -> None:
    [warning] = load(TIME_SLICING, memory_unit="MiB").warnings
    assert "only MIG devices have replicas; set memory-devices" in warning


def test_memory_units_and_devices_need_different_names(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"resource: 'nvidia\.com/gpu' .*use another name"):
        load(resource="nvidia.com/gpu")


# MPS


def test_replicas_with_mps_require_the_mps_root(load: Load) -> None:
    with pytest.raises(ConfigError, match="using MPS requires --mps-root"):
        load(MPS)
    assert load(MPS, env={"MPS_ROOT": "/mps"}).settings.containers.mps_root == "/mps"


def test_replicas_with_mps_do_not_support_mixed_mig(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"mig-strategy: 'mixed' .*sharing\.mps"):
        load(MPS, mps_root="/mps", mig_strategy="mixed")
    assert load(TIME_SLICING, mig_strategy="mixed")


# Nested clusters


def test_a_host_marks_its_containers_as_nodes(load: Load) -> None:
    settings = load(nested="host", memory_devices="none").settings
    assert settings.nested is Nested.HOST
    assert settings.rules.nested
    assert settings.nested_env is None


@pytest.mark.parametrize(
    ("text", "place"),
    [("mount", "/gpuslice/gpu.env"), ("none", None), ("/gpu.env", "/gpu.env")],
)
def test_a_host_mounts_the_list_at_its_own_path_or_elsewhere_or_not_at_all(
    load: Load, text: str, place: str | None
) -> None:
    assert load(nested_file=text).settings.nested_file == place
    assert load(f"flags: {{nestedFile: {text}}}").settings.nested_file == place


def test_a_relative_path_of_the_list_is_rejected_with_the_choices(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"NESTED_FILE: 'gpu.env' .*mount, none, or the absolute"):
        load(env={"NESTED_FILE": "gpu.env"})


MERGED = "{failRequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 2%s}]}"


@pytest.mark.parametrize("section", ["{resources: [{name: gpu, replicas: 2%s}]}", MERGED])
def test_shares_by_mps_for_nested_nodes_are_rejected(load: Load, section: str) -> None:
    def config(nested: str, node: str = "off", gpus: str = "[]") -> str:
        return (
            f"flags: {{mpsRoot: /m, nested: {node}}}\n"
            f"resources: {{gpus: {gpus}}}\n"
            f"sharing: {{mps: {section % nested}}}\n"
        )

    entry = r"sharing\.mps\.resources\[0\]\.nested: 'host' .* whole GPU without limits.*nested: off"
    with pytest.raises(ConfigError, match=entry):
        load(config(", nested: host"))
    node = r"flags\.nested: 'host' is not valid: sharing\.mps shares nvidia\.com/gpu"
    with pytest.raises(ConfigError, match=node):
        load(config("", "host"))
    with pytest.raises(ConfigError, match="whole GPU without limits"):
        load(config("", "off", "[{pattern: '*', name: gpu, nested: host}]"))
    assert load(config(", nested: off", "host"))
    assert load(config("", "host", "[{pattern: '*', name: gpu, nested: off}]"))
    # Which of the rules applies is known on the node only.
    assert load(config("", "host", "[{pattern: 'T4', name: gpu, nested: off}]"))


def test_a_host_of_nested_nodes_needs_gpus_that_are_not_divided_into_units(load: Load) -> None:
    reason = r"^NESTED: 'host' .*aliyun\.com/gpu-mem.*Set memory-devices to none"
    with pytest.raises(ConfigError, match=reason):
        load(env={"NESTED": "host"})
    for options in ({"memory_devices": "0,"}, {"memory_devices": "1"}, {"mig_strategy": "mixed"}):
        [warning] = load(nested="host", **options).warnings
        assert warning.startswith("nested: host does not apply to memory units")


def test_a_guest_has_two_sources_for_its_devices(load: Load) -> None:
    env = {"NESTED": "guest", "NVIDIA_ALLOCATED_DEVICES": "GPU-a,GPU-b"}
    settings = load(env=env).settings
    assert settings.nested is Nested.GUEST
    assert not settings.rules.nested
    assert (settings.nested_env, settings.nested_devices) == ("/gpu.env", "GPU-a,GPU-b")
    assert load(env=env | {"NESTED_ENV": "/etc/gpu.env"}).settings.nested_env == "/etc/gpu.env"


def test_only_a_guest_uses_the_devices_of_its_environment(load: Load) -> None:
    assert load(env={"NVIDIA_ALLOCATED_DEVICES": "GPU-a"}).settings == Settings()


def test_the_file_of_a_guest_is_a_warning_on_other_nodes(load: Load) -> None:
    assert load(nested_env="/x").warnings == ("nested-env has no effect: nested is not guest",)


def test_a_bare_off_in_yaml_is_accepted(load: Load) -> None:
    assert load("flags: {nested: off}").settings.nested is Nested.OFF
    with pytest.raises(ConfigError, match=r"flags\.nested: true .*choose one of off, host, guest"):
        load("flags: {nested: on}")


# Health


@pytest.mark.parametrize(
    ("disable", "enable", "expected"),
    [
        ("", "", HealthSettings()),
        ("all", "", HealthSettings(ignore_all=True)),
        ("xids", "", HealthSettings(ignore_all=True)),
        ("ALL", "", HealthSettings(ignore_all=True)),
        ("48, 63", "", HealthSettings(ignored=frozenset({48, 63}))),
        ("", "13,31", HealthSettings(fatal=frozenset({13, 31}))),
        ("", "all", HealthSettings(fatal=None)),
        ("all", "48", HealthSettings(ignore_all=True, fatal=frozenset({48}))),
    ],
)
def test_xids_are_disabled_and_enabled_by_variables(
    load: Load, disable: str, enable: str, expected: HealthSettings
) -> None:
    env = {"DP_DISABLE_HEALTHCHECKS": disable, "DP_ENABLE_HEALTHCHECKS": enable}
    assert load(env=env) == Loaded(Settings(health=expected))


def test_an_invalid_xid_is_skipped_with_a_warning(load: Load) -> None:
    loaded = load(env={"DP_DISABLE_HEALTHCHECKS": "48,ecc,-1", "DP_ENABLE_HEALTHCHECKS": "0x3"})
    assert loaded.settings.health == HealthSettings(ignored=frozenset({48}))
    assert loaded.warnings == (
        "DP_DISABLE_HEALTHCHECKS: 'ecc' is not valid and is skipped: use XID numbers, or all",
        "DP_DISABLE_HEALTHCHECKS: '-1' is not valid and is skipped: use XID numbers, or all",
        "DP_ENABLE_HEALTHCHECKS: '0x3' is not valid and is skipped: use XID numbers, or all",
    )


def test_unknown_features_and_hooks_of_cdi_are_warnings(load: Load) -> None:
    loaded = load(cdi_feature_flags="turbo", cdi_disable_hooks="update-ldcache,knit")
    assert loaded.warnings == (
        "cdi-feature-flags: 'turbo' is unknown",
        "cdi-disable-hooks: 'knit' is unknown",
    )


# Errors name the source of the value


def test_an_error_names_the_flag_the_variable_or_the_key(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"^memory-unit: '6GB' is not valid: use a whole.*2GiB"):
        load(memory_unit="6GB")
    with pytest.raises(
        ConfigError, match=r"^MIG_STRATEGY: 'x' .*choose one of none, single, mixed"
    ):
        load(env={"MIG_STRATEGY": "x"})
    with pytest.raises(ConfigError, match=r"config\.yaml: flags\.plugin\.deviceIDStrategy: 'x' "):
        load("flags: {plugin: {deviceIDStrategy: x}}")


def test_lenient_skips_unknown_keys_with_a_warning(load: Load) -> None:
    yaml = "flags: {renameByDefault: true, migStrategy: single}"
    for lenient in (load(yaml, lenient="true"), load(yaml, env={"GPUSLICE_LENIENT": "1"})):
        assert lenient.settings.rules.mig_strategy.value == "single"
        [warning] = lenient.warnings
        assert "unknown key `flags.renameByDefault`" in warning
