"""The commands of `gpuslice` that people type, and the entries of the daemons in its help."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuslice.cli.agent import AGENT, run_agent_command
from gpuslice.cli.daemon_program import exit_with_message
from gpuslice.cli.labels import LABELS, run_labels_command
from gpuslice.cli.mps_control_daemon import MPS, run_mps_command
from gpuslice.config.errors import ConfigError
from gpuslice.config.value_parsers import split_list

# A daemon parses its own flags, --help included.
_PASS_ALL_ARGUMENTS = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
    "allow_interspersed_args": False,
}

app = typer.Typer(
    name="gpuslice",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version_and_exit(requested: bool) -> None:  # noqa: FBT001 (Typer's signature)
    if requested:
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


@app.command(help=AGENT.summary, add_help_option=False, context_settings=_PASS_ALL_ARGUMENTS)
def agent(context: typer.Context) -> None:
    run_agent_command(context.args)


@app.command(help=MPS.summary, add_help_option=False, context_settings=_PASS_ALL_ARGUMENTS)
def mps(context: typer.Context) -> None:
    run_mps_command(context.args)


@app.command(help=LABELS.summary, add_help_option=False, context_settings=_PASS_ALL_ARGUMENTS)
def labels(context: typer.Context) -> None:
    run_labels_command(context.args)


@app.command(name="version")
def print_version() -> None:
    """Print the version."""
    from importlib.metadata import version  # takes 40 ms

    typer.echo(version("gpuslice"))


@app.command()
def demo(
    *,
    profile: Annotated[
        str, typer.Option(help="Node to simulate; `gpuslice-sim profiles` lists them.")
    ] = "t4x2",
    pods: Annotated[
        str, typer.Option(help="Sizes of the pods in GiB, separated by commas.")
    ] = "6,3,8",
    keep: Annotated[
        bool, typer.Option("--keep/--no-keep", help="Keep everything running until Ctrl-C.")
    ] = False,
) -> None:
    """Run a simulated GPU node. It needs no GPU and no cluster."""
    try:
        from gpuslice.report.demo.run import DemoError, run_demo
    except ModuleNotFoundError as missing:
        typer.echo(
            f"gpuslice demo: {missing.name} is not installed: pip install 'gpuslice[demo]'",
            err=True,
        )
        raise typer.Exit(1) from None
    with exit_with_message("gpuslice demo", ConfigError, DemoError):
        run_demo(profile, _pod_sizes(pods), keep=keep)


def _pod_sizes(text: str) -> list[int]:
    sizes = split_list(text)
    if not sizes or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise ConfigError("pods", text, "use whole numbers of GiB, for example 6,3")
    return [int(size) for size in sizes]
