"""Statistics of steps that two trainings took in turn."""

import random
import statistics


def interval(ratios: list[float], seed: int = 1) -> tuple[float, float, float]:
    """Median, and the 2.5th and 97.5th percentile of the medians of 2,000 resamples."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), medians[49], medians[1949]
