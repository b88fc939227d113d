"""How much of a GPU's threads a share stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

# MPS limits threads by whole TPCs, which have this many SMs on every GPU that it can limit.
_SMS_PER_TPC = 2
_WHOLE_GPU = 100
# The first architecture with static partitions.
_AMPERE = (8, 0)

_AMOUNT = re.compile(r"(?P<count>[0-9]{1,5})\s*(?P<unit>%|SMs?)", re.ASCII)


class ThreadStrategy(Enum):
    """How the limit on threads follows from the shares of a GPU."""

    PROPORTIONAL = "proportional"  # to the memory of a container
    UNIFORM = "uniform"  # 100/n for each container, where n is the number of shares
    UNIFORM_HALF = "uniform-half"  # twice that: containers that are idle leave threads to others
    SM_PARTITION = "sm_partition"  # proportional, and no other container uses these SMs
    NONE = "none"  # no limit


@dataclass(frozen=True, slots=True)
class Percent:
    """An explicit part of the GPU."""

    value: int

    def __str__(self) -> str:
        return f"{self.value}%"


@dataclass(frozen=True, slots=True)
class Multiprocessors:
    """An explicit number of SMs."""

    count: int

    def __str__(self) -> str:
        return f"{self.count} SMs"


ThreadAmount = Percent | Multiprocessors
ThreadRule = ThreadStrategy | ThreadAmount


def parse_amount(text: str) -> ThreadAmount | None:
    """`30%` or `20 SMs`; None: another text. Raises ValueError, which states the remedy."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        return None
    count = int(match["count"])
    if match["unit"] == "%":
        if not 1 <= count <= _WHOLE_GPU:
            raise ValueError("use a percentage from 1% to 100%")
        return Percent(count)
    if not count:
        raise ValueError("use at least 1 SM")
    return Multiprocessors(count)


@dataclass(frozen=True, slots=True)
class Threads:
    """What one share stands for, in percent of the GPU."""

    percent: Fraction
    # Whether several shares of a container add up.
    adds_up: bool = True
    # The SMs of the GPU, if the share is a number of SMs.
    sms: int | None = None
    # Whether a container gets whole SMs that no other container uses.
    partitioned: bool = False

    def chunks(self, count: int, most: int) -> int:
        """What a container with `count` shares gets, if a GPU has `most` chunks for partitions."""
        return min(most, max(1, int(self.percent * count * most / _WHOLE_GPU)))

    def times(self, count: int) -> int:
        """The limit of a container that has `count` shares, as a whole percentage.

        A percentage is rounded down once, not per share, and never to 0: MPS accepts 1 to 100, and
        0 would be no limit.
        """
        percent = self.percent * count if self.adds_up else self.percent
        if self.sms is not None:
            return percentage_of(int(percent * self.sms / _WHOLE_GPU), self.sms)
        return min(_WHOLE_GPU, max(1, int(percent)))


def share_of_threads(
    rule: ThreadRule, shares: int, portion: Fraction, sms: int, *, per_container: bool = False
) -> Threads | None:
    """None: threads are not limited.

    `shares` is the number of all shares of the GPU, `portion` the part of its memory that this one
    has, `sms` the SMs of the GPU. With `per_container`, an explicit amount is that of a container,
    however many shares it has.
    """
    match rule:
        case ThreadStrategy.NONE:
            return None
        case ThreadStrategy.PROPORTIONAL:
            return Threads(_WHOLE_GPU * portion)
        case ThreadStrategy.SM_PARTITION:
            return Threads(_WHOLE_GPU * portion, partitioned=True)
        case ThreadStrategy.UNIFORM:
            return Threads(Fraction(_WHOLE_GPU, shares), adds_up=False)
        case ThreadStrategy.UNIFORM_HALF:
            return Threads(min(Fraction(_WHOLE_GPU), 2 * Fraction(_WHOLE_GPU, shares)), False)
        case Percent():
            return Threads(Fraction(rule.value), not per_container)
        case Multiprocessors():
            if not sms:  # threads are not limited, or the device is skipped
                return None
            return Threads(Fraction(_WHOLE_GPU * rule.count, sms), not per_container, sms)


def why_no_threads(rule: ThreadRule, sms: int) -> str | None:
    """Completes "skipping GPU 0: …" for a GPU without this many SMs; 0: it is unknown how many."""
    if not isinstance(rule, Multiprocessors):
        return None
    if not sms:
        return (
            f"its number of SMs is unknown, and its threads are limited to {rule}. Use a "
            "percentage, for example 30%"
        )
    if rule.count > sms:
        return f"it has {sms} SMs, and its threads are limited to {rule}. Use at most {sms} SMs"
    return None


def why_no_partitions(rule: ThreadRule, compute_capability: tuple[int, int]) -> str | None:
    """Completes "skipping GPU 0: …" for a GPU whose SMs cannot be partitioned."""
    if rule is not ThreadStrategy.SM_PARTITION or compute_capability >= _AMPERE:
        return None
    major, minor = compute_capability
    return (
        f"MPS has static partitions from compute capability 8.0 on, and this GPU has "
        f"{major}.{minor}. Use another value for threads"
    )


def why_rounded(rule: ThreadRule, sms: int) -> str | None:
    """A sentence for a number of SMs that no percentage gives exactly; None: one does."""
    if not isinstance(rule, Multiprocessors) or not sms:
        return None
    found = sms_at(percentage_of(rule.count, sms), sms)
    if found == rule.count:
        return None
    return f"no percentage gives {rule} of its {sms}, because MPS rounds: it is {found} SMs"


def sms_at(percentage: int, sms: int) -> int:
    """The SMs that a client gets, as the driver rounds: down to whole TPCs, and at least one."""
    if percentage >= _WHOLE_GPU:
        return sms
    return max(1, sms * percentage // _WHOLE_GPU // _SMS_PER_TPC) * _SMS_PER_TPC


def percentage_of(wanted: int, sms: int) -> int:
    """The lowest whole percentage with which a client gets this many SMs.

    If no percentage gives exactly as many, it is the next lower number; the lowest is one TPC.
    """
    possible = [(sms_at(percentage, sms), percentage) for percentage in range(1, _WHOLE_GPU + 1)]
    most = max((found for found, _ in possible if found <= wanted), default=possible[0][0])
    return next(percentage for found, percentage in possible if found == most)
