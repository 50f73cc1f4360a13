"""Speed of training on one GPU with batches of one group of like length, and of several.

    benchmarks/gpu/length_groups.py [--sizes base] [--groups 1 4 16] [--cells 65536] [--rounds 3]

Prints source + target tokens a second and peak memory of each number of groups, and the median of
the rounds' ratios to the first. All take turns, each over its own updates of about as many cells
and of the same random pairs as in train.py. `--sizes tiny --updates 20` shows on a CPU that it
works; those figures mean nothing.
"""

from __future__ import annotations

import argparse
import statistics

from train import SIZES, Side, our_step, training_updates

from dragoman.distributed.world import join_world


def main() -> None:
    options = _options()
    with join_world() as world:
        for size in options.sizes:
            step = our_step(SIZES[size], world, compiled=not options.no_compile)
            updates = {
                groups: training_updates(options, world, groups=groups) for groups in options.groups
            }
            sides = {groups: Side.warmed(step, updates[groups]) for groups in options.groups}
            for _ in range(options.rounds):
                for groups, side in sides.items():
                    side.take_turn(updates[groups])
            rates = {
                groups: [
                    sum(u.global_source_tokens + u.global_target_tokens for u in updates[groups])
                    / seconds
                    for seconds in side.seconds
                ]
                for groups, side in sides.items()
            }
            first = rates[options.groups[0]]
            for groups, found in rates.items():
                ratios = [mine / one for mine, one in zip(found, first, strict=True)]
                print(
                    f"| {size} | {groups} | {statistics.median(found):,.0f} "
                    f"| {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) "
                    f"| {max(sides[groups].peak_memory_bytes, default=0) / 1e9:.1f} GB |",
                    flush=True,
                )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["base"])
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--cells", type=int, default=65_536, help="of a batch's longer side")
    parser.add_argument("--length-multiple", type=int, default=8)
    parser.add_argument("--updates", type=int, default=100, help="in a turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
