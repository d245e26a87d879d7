"""Numbers as people read them, each with its unit. Every view uses these, so that one number looks the same in all."""

from __future__ import annotations

_MINUTE = 60
_HOUR = 3600
_GIB = 1 << 30


def seconds(value: float) -> str:
    """`412 ms`, `7.25 s`, `33.0 s`, `27.4 min`, `5.2 h`."""
    if value <= 0:
        return "0 s"
    if value < 0.01:
        return f"{value * 1000:.2g} ms"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 10:
        return f"{value:.2f} s"
    if value < 1000:
        return f"{value:.1f} s"
    if value < 2 * _HOUR:
        return f"{value / _MINUTE:.1f} min"
    return f"{value / _HOUR:,.1f} h"


def gib(value: float) -> str:
    """Bytes in GiB, without the unit: `71.3`, `0.42`."""
    scaled = value / _GIB
    return f"{scaled:.1f}" if scaled >= 10 else f"{scaled:.2f}"


def percent(share: float) -> str:
    """`93 %`."""
    return f"{100 * share:.0f} %"


def rate(value: float) -> str:
    """A rate without its unit: `15,900`, `31.0`, `0.42`."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def count(value: int) -> str:
    """`1,024`."""
    return f"{value:,}"
