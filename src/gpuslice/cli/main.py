"""The `gpuslice` command."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuslice.cli.outcome import exit_with_message
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Given, load_settings
from gpuslice.config.settings import KUBELET_SOCKET
from gpuslice.telemetry.logs import LogFormat, LogLevel, configure_logs

app = typer.Typer(
    name="gpuslice",
    help="Any-size slices of NVIDIA GPUs for Kubernetes pods, with limits that hold.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    app()


@app.command()
def agent(
    *,
    resource: Annotated[
        str | None,
        typer.Option(
            envvar="GPUSLICE_RESOURCE", help="Resource to offer (default: aliyun.com/gpu-mem)."
        ),
    ] = None,
    memory_unit: Annotated[
        str | None,
        typer.Option(
            envvar="GPUSLICE_MEMORY_UNIT",
            help="What a request of 1 means: GiB, MiB, 256MiB, … (default: GiB).",
        ),
    ] = None,
    memory_reserve: Annotated[
        str | None,
        typer.Option(
            envvar="GPUSLICE_MEMORY_RESERVE",
            help="Memory of each GPU that is kept back, for the MPS server (default: 0).",
        ),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            envvar="GPUSLICE_THREADS",
            help="Share of threads: proportional to the memory, or none (default: proportional).",
        ),
    ] = None,
    mps_pipe: Annotated[
        str | None,
        typer.Option(
            envvar="GPUSLICE_MPS_PIPE",
            help="Pipe directory of the node's MPS daemon; containers get it and their limits.",
        ),
    ] = None,
    mps_check: Annotated[
        str | None,
        typer.Option(
            envvar="GPUSLICE_MPS_CHECK",
            help="While MPS does not answer: require it, auto (only if it is visible from here), "
            "off (default: require).",
        ),
    ] = None,
    health_checks: Annotated[
        bool | None,
        typer.Option(envvar="GPUSLICE_HEALTH_CHECKS", help="Watch GPUs for errors (default: on)."),
    ] = None,
    fail_on_init_error: Annotated[
        bool | None,
        typer.Option(
            envvar="FAIL_ON_INIT_ERROR",
            help="Without a driver or GPUs: exit, or wait and try again (default: exit).",
        ),
    ] = None,
    kubelet_socket: Annotated[
        str | None,
        typer.Option(
            envvar="KUBELET_SOCKET",
            help=f"Where the kubelet takes registrations (default: {KUBELET_SOCKET}).",
        ),
    ] = None,
    config_file: Annotated[
        str | None, typer.Option(envvar="CONFIG_FILE", help="Settings in YAML; flags win.")
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option(envvar="GPUSLICE_LOG_LEVEL", help="The least that is logged.")
    ] = LogLevel.INFO,
    log_format: Annotated[
        LogFormat, typer.Option(envvar="GPUSLICE_LOG_FORMAT", help="Log lines as text or JSON.")
    ] = LogFormat.TEXT,
) -> None:
    """Offer slices of this node's GPUs to the kubelet.

    SIGHUP reads the settings again and looks for GPUs anew; SIGQUIT prints what the agent is doing.
    """
    given = Given(
        resource=resource,
        memory_unit=memory_unit,
        memory_reserve=memory_reserve,
        threads=threads,
        mps_pipe=mps_pipe,
        mps_check=mps_check,
        health_checks=health_checks,
        fail_on_init_error=fail_on_init_error,
        kubelet_socket=kubelet_socket,
        config_file=config_file,
    )
    with exit_with_message("gpuslice agent"):
        configure_logs(log_level, log_format)
        from gpuslice.agent.daemon import run_agent

        run_agent(lambda: load_settings(given))


@app.command(name="version")
def print_version() -> None:
    """Print the version."""
    from importlib.metadata import version  # costs an agent 40 ms of its start otherwise

    typer.echo(version("gpuslice"))


@app.command()
def demo(
    *,
    profile: Annotated[
        str, typer.Option(help="Node to simulate; `gpuslice-sim profiles` lists them.")
    ] = "t4x2",
    pods: Annotated[
        str, typer.Option(help="Sizes in GiB of the pods to run, separated by commas.")
    ] = "6,3,8",
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave everything running until Ctrl-C.")
    ] = False,
) -> None:
    """Show a simulated GPU node at work: no GPU and no cluster needed."""
    try:
        from gpuslice.report.demo.run import DemoError, run_demo
    except ModuleNotFoundError as missing:
        typer.echo(
            f"gpuslice demo: {missing.name} is not installed: pip install 'gpuslice[demo]'",
            err=True,
        )
        raise typer.Exit(1) from None
    try:
        run_demo(profile, _sizes(pods), keep=keep)
    except (ConfigError, DemoError) as error:
        typer.echo(f"gpuslice demo: {error}", err=True)
        raise typer.Exit(1) from None


def _sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError("pods", text, "use whole numbers of GiB, for example 6,3")
    return [int(part) for part in parts]
