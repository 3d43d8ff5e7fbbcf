"""What happens to the tiers' rates during a step, the same for every policy, and what the best
possible time is then."""

import random

# Name: what it shows.
SCENARIOS = {
    "quiet": "the tiers keep their rates",
    "pfs-periodic": "the second tier at 40 % for half of every 4 s",
    "pfs-bursty": "the second tier at 10 to 60 % in bursts of 1 s on average, 2 s apart",
    "pfs-steady": "the second tier at 50 %",
    "nvme-writes": "the first tier at 60 % for half of every 4 s, as if it were written to",
    "competitor": "a second reader on the second tier, with 8 requests in flight",
    "pfs-hangs": "the second tier, then a FUSE, stops answering",
    "pfs-dies": "everything on the second tier fails",
}
FAILING = ("pfs-hangs", "pfs-dies")
# When it does, as a part of the bound of a quiet step.
FAILS_AT = 0.4


def changes_of(scenario, seed, seconds):
    """Pairs of seconds from the step's begin and factor, and the tier that they are for."""
    chance = random.Random(f"{scenario} {seed}")
    if scenario == "pfs-steady":
        return 1, [(0.0, 0.5)]
    if scenario in ("pfs-periodic", "nvme-writes"):
        low = 0.4 if scenario == "pfs-periodic" else 0.6
        phase = chance.uniform(0, 4)
        times = [phase + 2 * k for k in range(-2, int(seconds * 3 / 2))]
        changes = [(t, low if k % 2 == 0 else 1.0) for k, t in enumerate(times)]
        return (1 if scenario == "pfs-periodic" else 0), from_zero(changes)
    if scenario == "pfs-bursty":
        changes, at = [], 0.0
        while at < 3 * seconds:
            at += max(0.5, chance.expovariate(1 / 2))
            changes.append((at, chance.uniform(0.1, 0.6)))
            at += max(0.5, chance.expovariate(1))
            changes.append((at, 1.0))
        return 1, changes
    return 1, []


def from_zero(changes):
    """The same from time zero on, beginning with the factor in force then."""
    before = [factor for at, factor in changes if at <= 0]
    return [(0.0, before[-1] if before else 1.0)] + [c for c in changes if c[0] > 0]


def bound_seconds(rates, changes, total):
    """The first time at which the integral of the rates (bytes/s by tier) reaches `total`. Changes
    are seconds, tier and rate, in ascending order; those at or before zero hold from the begin."""
    rates, at, moved = list(rates), 0.0, 0.0
    for when, tier, rate in changes:
        if when > at:
            if moved + sum(rates) * (when - at) >= total:
                break
            moved += sum(rates) * (when - at)
            at = when
        rates[tier] = rate
    return at + (total - moved) / sum(rates)
