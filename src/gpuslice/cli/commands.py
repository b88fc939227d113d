"""The commands of `gpuslice`, with their help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from gpuslice.cli.agent import run_agent_command
from gpuslice.cli.switches import SWITCHES_HELP, SwitchCommand
from gpuslice.cli.typed import takes
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.labels.label_options import LABELS_OPTIONS

app = typer.Typer(
    name="gpuslice",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version_and_exit(asked: bool) -> None:  # noqa: FBT001 (Typer's signature)
    if asked:
        print_version()
        raise typer.Exit


@app.callback()
def gpuslice(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version_and_exit, is_eager=True
        ),
    ] = False,
) -> None:
    """Any-size slices of NVIDIA GPUs for Kubernetes pods, with limits that hold."""


@app.command(cls=SwitchCommand, epilog=SWITCHES_HELP)
@takes(OPTIONS)
def agent(flags: Mapping[str, str]) -> None:
    """Offer this node's GPUs to the kubelet: slices of their memory, replicas, whole or MIG.

    SIGHUP reads the settings again and looks for GPUs anew; SIGQUIT prints what the agent is doing.
    """
    run_agent_command(flags)


@app.command(cls=SwitchCommand, epilog=SWITCHES_HELP)
@takes(LABELS_OPTIONS)
def labels(flags: Mapping[str, str]) -> None:
    """Label this node with what its GPUs are and what is offered of them.

    SIGHUP reads the settings again.
    """
    from gpuslice.cli.labels import run_labels

    run_labels(flags)


@app.command(name="version")
def print_version() -> None:
    """Print the version."""
    from importlib.metadata import version  # costs an agent 40 ms of its start otherwise

    typer.echo(version("gpuslice"))


@app.command(cls=SwitchCommand)
def demo(
    *,
    profile: Annotated[
        str, typer.Option(help="Node to simulate; `gpuslice-sim profiles` lists them.")
    ] = "t4x2",
    pods: Annotated[
        str, typer.Option(help="Sizes in GiB of the pods to run, separated by commas.")
    ] = "6,3,8",
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Leave everything running until Ctrl-C.")
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
