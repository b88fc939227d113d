"""`gpuslice-sim fault`: what `gpuslice_sim.faults` does, from a shell."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuslice_sim.node import SimNode

app = typer.Typer(help="Make something happen on a node, seen by all programs at once.")

Directory = Annotated[Path, typer.Argument(help="Directory of the node.", show_default=False)]
Gpu = Annotated[str, typer.Argument(help="Index, UUID or the start of a UUID.", show_default=False)]
Gi = Annotated[int | None, typer.Option(help="Only this MIG GPU instance.", show_default=False)]
Ci = Annotated[int | None, typer.Option(help="Only this compute instance.", show_default=False)]
Code = Annotated[
    str, typer.Argument(help="NVML error by name or number; `none` ends it.", show_default=False)
]


@app.callback(no_args_is_help=True)
def target(context: typer.Context, directory: Directory) -> None:
    context.obj = directory


def _node(context: typer.Context) -> SimNode:
    return SimNode.open(context.obj)


@app.command()
def xid(
    context: typer.Context,
    gpu: Gpu,
    number: Annotated[int, typer.Argument(help="XID, e.g. 79.", show_default=False)],
    gi: Gi = None,
    ci: Ci = None,
) -> None:
    """Report an XID error."""
    _node(context).faults.xid(gpu, number, gi, ci)


@app.command()
def lost(context: typer.Context, gpu: Gpu) -> None:
    """Let a GPU fall off the bus."""
    _node(context).faults.lost(gpu)


@app.command()
def restore(context: typer.Context, gpu: Gpu) -> None:
    """Bring a GPU back as after a reset."""
    _node(context).faults.restore(gpu)


@app.command()
def ecc(
    context: typer.Context,
    gpu: Gpu,
    corrected: Annotated[int, typer.Option(help="New corrected errors.")] = 0,
    uncorrected: Annotated[int, typer.Option(help="New uncorrected errors.")] = 0,
    sram: Annotated[bool, typer.Option("--sram", help="In SRAM, not DRAM.")] = False,
) -> None:
    """Add memory errors."""
    _node(context).faults.ecc(gpu, corrected=corrected, uncorrected=uncorrected, sram=sram)


@app.command()
def recovery_action(
    context: typer.Context,
    gpu: Gpu,
    action: Annotated[str, typer.Argument(help="Name or number.", show_default=False)],
) -> None:
    """Set what must be done before the GPU is used again (NONE, GPU_RESET, NODE_REBOOT, ...)."""
    _node(context).faults.recovery_action(gpu, action)


@app.command()
def remap_pending(
    context: typer.Context,
    gpu: Gpu,
    rows: Annotated[int, typer.Option(help="Rows to remap; 0 clears.")] = 1,
) -> None:
    """Let rows wait for remapping."""
    _node(context).faults.remap_pending(gpu, rows)


@app.command()
def remap_failure(context: typer.Context, gpu: Gpu) -> None:
    """Let row remapping fail."""
    _node(context).faults.remap_failure(gpu)


@app.command()
def utilization(
    context: typer.Context,
    gpu: Gpu,
    percent: Annotated[int, typer.Argument(show_default=False, min=0, max=100)],
    memory: Annotated[int, typer.Option(help="Memory utilization.", min=0, max=100)] = 0,
) -> None:
    """Set how busy a GPU looks."""
    _node(context).faults.utilization(gpu, percent, memory)


@app.command()
def add_process(
    context: typer.Context,
    gpu: Gpu,
    pid: Annotated[int, typer.Argument(show_default=False)],
    mib: Annotated[int, typer.Argument(help="Memory it uses, MiB.", show_default=False)],
    kind: Annotated[str, typer.Option(help="C, M+C or G.")] = "C",
    sm: Annotated[int, typer.Option(help="Utilization, percent.")] = 0,
    name: Annotated[str, typer.Option(help="Its name.")] = "",
    gi: Gi = None,
    ci: Ci = None,
    invented: Annotated[
        bool, typer.Option("--invented", help="No such process exists; keep it until removed.")
    ] = False,
) -> None:
    """Put a process on a GPU."""
    _node(context).faults.add_process(
        gpu, pid, mib << 20, kind=kind, sm_percent=sm, name=name, gi=gi, ci=ci, invented=invented
    )


@app.command()
def remove_process(
    context: typer.Context,
    gpu: Gpu,
    pid: Annotated[int, typer.Argument(show_default=False)],
) -> None:
    """Take a process off a GPU."""
    _node(context).faults.remove_process(gpu, pid)


@app.command()
def nvml_init(context: typer.Context, code: Code) -> None:
    """Let nvmlInit fail."""
    _node(context).faults.nvml_init(code)


@app.command()
def event_wait(context: typer.Context, code: Code) -> None:
    """Let waits for events fail."""
    _node(context).faults.event_wait(code)


@app.command()
def call(
    context: typer.Context,
    gpu: Gpu,
    function: Annotated[str, typer.Argument(help="nvmlDeviceGetUUID, ...", show_default=False)],
    code: Code,
) -> None:
    """Let one NVML call fail for one GPU."""
    _node(context).faults.call(gpu, function, code)


@app.command()
def unbind(
    context: typer.Context,
    gpu: Gpu,
    driver: Annotated[str, typer.Option(help="Its new driver; none if empty.")] = "",
) -> None:
    """Take a card from the NVIDIA driver; `plug` gives it back."""
    _node(context).faults.unbind(gpu, driver)


@app.command()
def unplug(context: typer.Context, gpu: Gpu) -> None:
    """Take a card out."""
    _node(context).faults.unplug(gpu)


@app.command()
def plug(context: typer.Context, gpu: Gpu) -> None:
    """Put a card back."""
    _node(context).faults.plug(gpu)


@app.command()
def add_gpu(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Model, e.g. t4.", show_default=False)],
) -> None:
    """Put a new card in and print its UUID."""
    typer.echo(_node(context).faults.add_gpu(model).uuid)


@app.command()
def mig(
    context: typer.Context,
    gpu: Gpu,
    layout: Annotated[
        list[str] | None, typer.Argument(help="Profiles, e.g. 3g.20gb 1g.5gb.", show_default=False)
    ] = None,
) -> None:
    """Change the MIG layout; without profiles MIG is off."""
    _node(context).faults.mig(gpu, layout or [])
