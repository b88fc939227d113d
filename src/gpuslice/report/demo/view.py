"""Prints the demo: with colours and boxes on a terminal, as plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from gpuslice_sim.node import SimGpu

_PLAIN_WIDTH = 100
_BAR_CELLS = 30


class View:
    def __init__(self) -> None:
        terminal = sys.stdout.isatty()
        self._console = Console(width=None if terminal else _PLAIN_WIDTH, highlight=False)
        # Time to read, on a terminal only.
        self._pause_seconds = 0.8 if terminal else 0.0
        self._scene = 0

    def scene(self, title: str) -> None:
        if self._scene:
            time.sleep(self._pause_seconds)
        self._scene += 1
        self._console.print()
        self._console.rule(f"[bold cyan]{self._scene}. {escape(title)}", align="left")

    def line(self, text: str) -> None:
        self._console.print(text)

    def command(self, text: str) -> None:
        self._console.print(Text.assemble(("$ ", "dim"), (text, "bold")), soft_wrap=True)

    def good(self, text: str) -> None:
        self._console.print(Text.assemble(("✔ ", "bold green"), text), soft_wrap=True)

    def bad(self, text: str) -> None:
        self._console.print(Text.assemble(("✘ ", "bold red"), text), soft_wrap=True)

    def quote(self, title: str, text: str) -> None:
        self._console.print(Panel(escape(text), title=escape(title), border_style="yellow"))

    def gpus(self, gpus: Sequence[SimGpu]) -> None:
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for column in ("GPU", "model", "memory", "SMs", "UUID"):
            table.add_column(column)
        for gpu in gpus:
            memory = f"{gpu.memory_total_bytes >> 20} MiB"
            table.add_row(f"/dev/nvidia{gpu.minor}", gpu.name, memory, str(gpu.sms), gpu.uuid)
        self._console.print(Padding(table, (0, 2)))

    def env(self, env: Mapping[str, str]) -> None:
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
        table.add_column()
        # Never truncated: the limit is at the end.
        table.add_column(overflow="fold")
        for key, value in sorted(env.items()):
            table.add_row(Text(key, "cyan"), value)
        self._console.print(Padding(table, (0, 2)))

    def occupancy(self, rows: Sequence[tuple[str, int, int, bool]]) -> None:
        """(label, used, total, healthy) for every GPU."""
        for label, used, total, healthy in rows:
            filled = round(_BAR_CELLS * used / total) if total else 0
            bar = Text.assemble(
                f"  {label:<6}",
                ("█" * filled, "green" if healthy else "red"),
                ("░" * (_BAR_CELLS - filled), "dim"),
                f"  {used}/{total} GiB",
                ("" if healthy else "  unhealthy", "bold red"),
            )
            self._console.print(bar)
