"""Generates the parts of the documentation that follow from the source.

`make docs` writes them; a test fails while they are outdated.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

import gpuslice
from gpuslice.codes import Code

DOCS = Path(__file__).parent
CODES = Path(gpuslice.__file__).parent / "codes.py"

_SECTION = re.compile(r"    # (?P<title>.+)")
_MEMBER = re.compile(r"    (?P<name>[A-Z][A-Z_]*) = ")


def package_table() -> str:
    """The packages from top to bottom, with the first line of their docstring."""
    rows = [f"| `{_file(name)}` | {_summary(f'gpuslice.{name}')} |" for name in _layers()]
    return "\n".join(["| package | contents |", "|---|---|", *rows])


def import_graph() -> str:
    """Which package imports which. Edges that follow from others are left out."""
    edges = _reduced(_imports())
    lines = [f"  {upper} --> {lower}" for upper in _layers() for lower in sorted(edges[upper])]
    return "\n".join(["```mermaid", "graph TD", *lines, "```"])


def code_tables() -> str:
    """Every reason code with its meaning, in the sections of codes.py."""
    parts: list[str] = []
    for title, codes in _sections():
        rows = [f"| `{code}` | {code.meaning} |" for code in codes]
        parts += [f"## {title}", "", "| code | meaning |", "|---|---|", *rows, ""]
    return "\n".join(parts).rstrip()


GENERATED = {
    "development.md": {"packages": package_table, "imports": import_graph},
    "reason-codes.md": {"codes": code_tables},
}


def outdated() -> Iterator[tuple[Path, str]]:
    """Files whose generated parts are not current, with the text that they should have."""
    for name, parts in GENERATED.items():
        path = DOCS / name
        text = current = path.read_text()
        for part, generate in parts.items():
            text = _replaced(text, part, generate())
        if text != current:
            yield path, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if outdated")
    check = parser.parse_args().check
    stale = list(outdated())
    for path, text in stale:
        print(f"{'outdated' if check else 'wrote'}: docs/{path.name}")
        if not check:
            path.write_text(text)
    sys.exit(1 if check and stale else 0)


def _replaced(text: str, part: str, content: str) -> str:
    begin, end = f"<!-- generated: {part} -->\n", "<!-- end -->"
    head, found, rest = text.partition(begin)
    if not found or end not in rest:
        raise ValueError(f"the marker of {part!r} is missing")
    return f"{head}{begin}{content}\n{end}{rest.partition(end)[2]}"


def _file(name: str) -> str:
    return (
        f"{name}/"
        if hasattr(importlib.import_module(f"gpuslice.{name}"), "__path__")
        else f"{name}.py"
    )


def _summary(module: str) -> str:
    documentation = importlib.import_module(module).__doc__ or ""
    return documentation.strip().splitlines()[0]


def _layers() -> list[str]:
    """Packages and modules of gpuslice, those that import others first."""
    imports = _imports()
    order: list[str] = []
    left = dict(imports)
    while left:
        imported = {lower for lowers in left.values() for lower in lowers}
        top = sorted(name for name in left if name not in imported)
        order += top
        for name in top:
            del left[name]
    return order


def _imports() -> dict[str, set[str]]:
    graph = grimp.build_graph("gpuslice", cache_dir=None)
    names = [module.name for module in pkgutil.iter_modules(gpuslice.__path__)]
    packages = [name for name in names if not name.startswith("_")]
    modules = {
        name: {f"gpuslice.{name}", *graph.find_descendants(f"gpuslice.{name}")} for name in packages
    }
    owner = {module: name for name, members in modules.items() for module in members}
    return {
        name: {
            owner[imported]
            for module in members
            for imported in graph.find_modules_directly_imported_by(module)
            if owner.get(imported, name) != name
        }
        for name, members in modules.items()
    }


def _reduced(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The transitive reduction."""

    def reachable(name: str) -> set[str]:
        return edges[name] | {far for near in edges[name] for far in reachable(near)}

    return {
        upper: {
            lower
            for lower in lowers
            if not any(lower in reachable(other) for other in lowers if other != lower)
        }
        for upper, lowers in edges.items()
    }


def _sections() -> Iterator[tuple[str, list[Code]]]:
    title, codes = "", list[Code]()
    for line in CODES.read_text().splitlines():
        if match := _SECTION.fullmatch(line):
            if codes:
                yield title, codes
            title, codes = match["title"], []
        elif match := _MEMBER.match(line):
            codes.append(Code[match["name"]])
    yield title, codes


if __name__ == "__main__":
    main()
