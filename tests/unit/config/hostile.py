"""Configuration files that are meant to do harm, and those that are merely broken."""

from __future__ import annotations

MIB = 1 << 20


def _bomb(item: str) -> str:
    """Ten billion values in a few hundred bytes. `item` is a list or a section of aliases."""
    lines = ["a: &a {x: 1}"]
    for before, name in zip("abcdefghij", "bcdefghijk", strict=True):
        lines.append(f"{name}: &{name} {item % ', '.join([f'*{before}'] * 10)}")
    return "\n".join(lines)


def _entries(section: str, entry: str, count: int) -> str:
    return "\n".join([section, *(f"   - {entry % number}" for number in range(count))])


# Each is rejected.
HOSTILE = {
    "an empty number": 'version: !!int ""',
    "an empty fraction": 'version: !!float ""',
    "a boolean that is none": 'flags: {failOnInitError: !!bool "zz"}',
    "a date that is none": 'version: !!timestamp "x"',
    "bytes that are none": 'version: !!binary "x"',
    "a set": "flags: !!set {a, b}",
    "an object": "version: !!python/object/apply:os.system [id]",
    "a section as text": 'flags: !!map "x"',
    "half of a character": 'sharing: {memory: {resource: "\\ud800"}}',
    "half of a character in a key": '"\\ud800": 1',
    "half of a character in a list": 'flags: {mpsRoot: ["\\ud800"]}',
    "a long path": f"flags: {{nested: guest, nestedEnv: /{'x' * 300}}}",
    "a zero byte in a path to write": 'flags: {gfd: {outputFile: "/a\\0b"}}',
    "a zero byte in a path to read": 'flags: {gfd: {machineTypeFile: "/a\\0b"}}',
    "a zero byte in JSON": '{"flags": {"gfd": {"outputFile": "/a\\u0000b"}}}',
    "a huge number": f"version: 0x{'f' * 4000}",
    "a huge number in JSON": f'{{"version": {"9" * 4299}}}',
    "an alias bomb": _bomb("[%s]"),
    "a merge bomb": _bomb("{<<: [%s]}"),
    "an alias to itself": "resources: {gpus: &l [*l]}",
    "deep lists": "[" * 3000,
    "deep sections": "{a: " * 3000,
    "deep JSON": '{"a":' * 100_000,
    "unknown keys": "\n".join(f"key{number}: 1" for number in range(60_000)),
    "long unknown keys": "\n".join(f"{'k' * 900}{number}: 1" for number in range(1_000)),
    "many valid entries": _entries("resources:\n gpus:", "{pattern: '*%s', name: gpu}", 23_000),
    "much JSON": f'{{"resources": {{"gpus": [{"1," * 400_000}1]}}}}',
    "a long text": f'version: "{"a" * (MIB - 100)}"',
    "a large file": "#" * (MIB + 1),
}  # fmt: skip

# Each is valid, and must not take long.
LARGE_AND_VALID = {
    "many names": _entries("resources:\n gpus:", "{pattern: '*%s', name: gpu}", 3_900),
    "many replicas": _entries(
        "sharing:\n timeSlicing:\n  resources:", "{name: gpu%s, replicas: 2}", 3_900
    ),
    "a pattern of stars": f"resources: {{gpus: [{{pattern: '{'a*' * 40}b', name: gpu}}]}}",
    "comments": "# a\n" * (MIB // 4),
}
