"""The name of a MIG profile, as NVIDIA's tools write it: 1g.5gb, 1g.10gb+me, 1c.3g.20gb."""

from __future__ import annotations

_EIGHTHS = 8
_GIB = 1024**3
_MIB = 1024**2

# Suffixes of profile names, by NVML's number of the profile.
_SUFFIXES = {
    7: "+me",  # 1 slice, with the media engines
    8: "+me",  # 2 slices
    10: "+gfx",  # 1 slice, with graphics
    11: "+gfx",  # 2 slices
    12: "+gfx",  # 4 slices
    13: "-me",  # 1 slice, without media engines
    14: "-me",  # 2 slices
    15: "+me.all",  # 1 slice, with all media engines
    16: "+me.all",  # 2 slices
    17: "+gfx",  # 3 slices
}


def name_of_profile(
    gpu_slices: int, compute_slices: int, memory_mib: int, gpu_bytes: int, suffix: str = ""
) -> str:
    compute = "" if compute_slices == gpu_slices else f"{compute_slices}c."
    return f"{compute}{gpu_slices}g.{_gigabytes(memory_mib, gpu_bytes)}gb{suffix}"


def suffix_of_profile(number: int) -> str:
    return _SUFFIXES.get(number, "")


def suffix_in_name(device_name: str) -> str:
    """From the name of a MIG device: `NVIDIA A100-SXM4-40GB MIG 1g.5gb+me`."""
    profile = device_name.rpartition(" MIG ")[2]
    size, found, suffix = profile.rpartition("gb")
    return suffix if found and size[-1:].isdigit() and suffix[:1] in ("+", "-") else ""


def _gigabytes(memory_mib: int, gpu_bytes: int) -> int:
    """By the share in eighths, because an instance can use a little less than its name says."""
    if gpu_bytes <= 0:
        return 0
    eighths = -(-memory_mib * _MIB * _EIGHTHS // gpu_bytes)
    whole = -(-gpu_bytes // _GIB)
    # Half a gigabyte is rounded up: an eighth of 180 is 23.
    return (2 * eighths * whole + _EIGHTHS) // (2 * _EIGHTHS)
