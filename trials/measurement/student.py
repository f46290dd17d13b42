"""Student's t distribution with whole degrees of freedom, exactly, which the standard library lacks. Pure."""

from __future__ import annotations

import math
from functools import lru_cache

_MAX_T = 1e6


def student_tails(t: float, freedom: int) -> float:
    """Probability that |T| exceeds |t| (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0
    for step in range(freedom // 2):
        total += term
        term *= cosine**2 * ((2 * step + 2) / (2 * step + 3) if is_odd else (2 * step + 1) / (2 * step + 2))
    within = 2 / math.pi * (angle + sine * total) if is_odd else sine * total
    return max(0.0, 1.0 - within)


def student_above(t: float, freedom: int) -> float:
    """Probability that T exceeds t."""
    half = student_tails(t, freedom) / 2
    return half if t >= 0 else 1.0 - half


@lru_cache(maxsize=1024)
def student_quantile(tails: float, freedom: int) -> float:
    """The t that |T| exceeds with this probability, by bisection; at most a million."""
    low, high = 0.0, _MAX_T
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tails(middle, freedom) > tails else (low, middle)
    return high
