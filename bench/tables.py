"""Prints results as tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bench.measure import Case, Figures

Results = Mapping[str, Figures]


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    value: Callable[[Figures], float]
    show: Callable[[float], str]


def in_columns(results: Results) -> str:
    """One case: a row for each figure, a column for each plugin."""
    some = next(iter(results.values()))
    rows: list[tuple[str, Callable[[Figures], str]]] = [
        ("start to registered", lambda f: _ms(statistics.median(f.registered))),
        ("registered to first list", lambda f: _ms(statistics.median(f.listed))),
        ("list", lambda f: f"{f.list_bytes:,} B"),
        ("Allocate p50", lambda f: _ms(_percentile(f.allocate, 50))),
        ("Allocate p99", lambda f: _ms(_percentile(f.allocate, 99))),
        ("GetPreferredAllocation p50", lambda f: _ms(_percentile(_only(f), 50))),
        ("GetPreferredAllocation p99", lambda f: _ms(_percentile(_only(f), 99))),
        ("RSS", lambda f: _mib(statistics.median(f.rss_mib))),
    ]
    cells = [[label, *map(figure, results.values())] for label, figure in rows]
    return _table(f"{some.devices:,} devices", ["", *results], cells, labels=1)


def in_rows(title: str, cases: Iterable[tuple[Case, Results]]) -> str:
    """Several cases: a row for each plugin, and the ratio of the first to the last."""
    cases = list(cases)
    columns = _columns(cases[0][0].sizes)
    cells: list[list[str]] = []
    for case, results in cases:
        ids = next(iter(results.values())).devices
        what = f"{case.gpus} GPUs, {ids:,} ids" if ids != case.gpus else f"{case.gpus} GPUs"
        figures = list(results.values())
        for name, one in results.items():
            cells.append([what, name, *(column.show(column.value(one)) for column in columns)])
        if len(figures) > 1:
            ratios = [column.value(figures[0]) / column.value(figures[-1]) for column in columns]
            cells.append([what, "ratio", *map(_ratio, ratios)])
    return _table(title, ["", "", *(column.title for column in columns)], cells, labels=2)


def _columns(sizes: tuple[int, ...]) -> list[_Column]:
    prefer = [
        _Column(
            f"GetPreferredAllocation of {size} p50",
            lambda f, size=size: _percentile(f.prefer[size], 50),  # type: ignore[misc]
            _ms,
        )
        for size in sizes
    ]
    return [
        _Column("registered after", lambda f: statistics.median(f.registered), _ms),
        _Column("Allocate p50", lambda f: _percentile(f.allocate, 50), _ms),
        *prefer,
        _Column("RSS", lambda f: statistics.median(f.rss_mib), _mib),
    ]


def _table(title: str, head: list[str], cells: list[list[str]], *, labels: int) -> str:
    rule = "|" + "---|" * labels + "---:|" * (len(head) - labels)
    return "\n".join([f"### {title}", "", _row(head), rule, *map(_row, cells)]) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"


def _only(figures: Figures) -> list[float]:
    [samples] = figures.prefer.values()
    return samples


def _percentile(samples: list[float], percent: int) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:,.0f} ms"


def _mib(value: float) -> str:
    return f"{value:.0f} MiB"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"
