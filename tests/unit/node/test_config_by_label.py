"""The label of the node selects its configuration."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuslice.config.errors import ConfigError
from gpuslice.config.startup_options import StartupOptions
from gpuslice.programs.api_server import connect_if_needed
from tests.unit.cluster.kubernetes import ConfigMap, Kubernetes

from .config_reader import Reader, eventually, reading, run, set_label

# A directory and the node's label


def test_the_label_chooses_and_its_moves_are_followed(
    kubernetes: Kubernetes, configs: ConfigMap, labelled: StartupOptions
) -> None:
    set_label(kubernetes, "a")

    async def scenario(reader: Reader) -> None:
        assert reader.first == configs.directory / "a"
        set_label(kubernetes, "b")
        await reader.until("version: v1 # b")
        configs.update(a="version: v1 # a", b="edited")
        await reader.until("version: v1 # b", "edited")

    run(labelled, scenario)


def test_a_move_to_an_equal_configuration_is_told_too(
    kubernetes: Kubernetes, configs: ConfigMap, labelled: StartupOptions
) -> None:
    configs.update(a="same", b="same", c="other")
    set_label(kubernetes, "a")

    async def scenario(reader: Reader) -> None:
        set_label(kubernetes, "b")
        await reader.until("same")
        assert reader.source.current == configs.directory / "b"
        set_label(kubernetes, "c")
        await reader.until("same", "other")

    run(labelled, scenario)


def test_a_label_that_names_nothing_keeps_the_last_good_one_and_is_told_of(
    kubernetes: Kubernetes, configs: ConfigMap, labelled: StartupOptions
) -> None:
    set_label(kubernetes, "a")

    async def scenario(reader: Reader) -> None:
        set_label(kubernetes, "typo")
        await eventually(lambda: reader.metrics.last_reload_ok is False)
        assert reader.source.current == configs.directory / "a"
        await eventually(lambda: any(kind == "events" for kind, _ in kubernetes.objects))
        set_label(kubernetes, "b")
        await reader.until("version: v1 # b")

    run(labelled, scenario)
    (event,) = [found for (kind, _), found in kubernetes.objects.items() if kind == "events"]
    assert event["reason"] == "ConfigurationNotFound"
    assert "'typo'" in event["message"]
    assert "choose one of a, b" in event["message"]


def test_at_start_a_label_that_names_nothing_ends_the_agent(
    kubernetes: Kubernetes, labelled: StartupOptions
) -> None:
    set_label(kubernetes, "typo")

    async def scenario(_: Reader) -> None:
        raise AssertionError

    with pytest.raises(ConfigError, match="'typo'"):
        run(labelled, scenario)


def test_an_api_server_that_is_away_at_start_means_the_default_until_it_is_back(
    kubernetes: Kubernetes, configs: ConfigMap, tmp_path: Path
) -> None:
    options = StartupOptions(
        config_dir=configs.directory,
        node_name="n1",
        kubeconfig=kubernetes.kubeconfig(tmp_path / "kubeconfig"),
        default_config="a",
    )
    set_label(kubernetes, "b")
    kubernetes.refuse_with = 503

    async def scenario(reader: Reader) -> None:
        assert reader.first == configs.directory / "a"
        kubernetes.refuse_with = None
        await reader.until("version: v1 # b")

    run(options, scenario, label_timeout=0.5)


def test_without_a_default_the_agent_waits_for_the_api_server(
    kubernetes: Kubernetes, configs: ConfigMap, labelled: StartupOptions
) -> None:
    set_label(kubernetes, "b")
    kubernetes.refuse_with = 503

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, setattr, kubernetes, "refuse_with", None)
        async with reading(labelled, label_timeout=0.2) as reader:
            assert reader.first == configs.directory / "b"

    asyncio.run(main())


def test_a_label_that_goes_away_gives_the_default_its_turn(
    kubernetes: Kubernetes, configs: ConfigMap, tmp_path: Path
) -> None:
    options = StartupOptions(
        config_dir=configs.directory,
        node_name="n1",
        kubeconfig=kubernetes.kubeconfig(tmp_path / "kubeconfig"),
        default_config="a",
    )
    set_label(kubernetes, "b")

    async def scenario(reader: Reader) -> None:
        assert reader.first == configs.directory / "b"
        set_label(kubernetes, None)
        await reader.until("version: v1 # a")
        set_label(kubernetes, "")
        await asyncio.sleep(0.3)
        assert reader.read == ["version: v1 # a"]

    run(options, scenario)


# Whether there is an API server to talk to


def test_a_node_without_credentials_goes_without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert connect_if_needed(StartupOptions()) is None
    assert connect_if_needed(StartupOptions(node_name="n1")) is None


def test_a_label_cannot_be_read_without_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match=r"node-name: 'n1'.*set kubeconfig"):
        connect_if_needed(StartupOptions(node_name="n1", config_dir=tmp_path))
