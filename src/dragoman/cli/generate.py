"""`dragoman generate`: a job file for Slurm, Kubernetes or SkyPilot."""

import re
import sys
from pathlib import PurePosixPath
from typing import Final

from dragoman.base.errors import ConfigError
from dragoman.cli.options import RECIPE, SET, Command, Option, Options, positive

_PASSWORD: Final = re.compile(r"://[^/\s]*@")


@Command(
    "generate",
    "write a job file for Slurm, Kubernetes or SkyPilot",
    "Write a job file for a scheduler that starts the machines itself: Slurm, Kubernetes or "
    "SkyPilot.",
    Option("kind", choices=["slurm", "kubernetes", "skypilot"], help="the scheduler"),
    *(RECIPE, SET),
    Option("--folder", required=True, help="a folder that all machines share"),
    Option("--name", help="the name of the job (default: the recipe's)"),
    Option("--nodes", type=positive, default=1, help="machines (default: 1)"),
    Option("--gpus", type=int, default=0, help="GPUs in each machine (default: none)"),
    Option("--slots", type=positive, help="ranks on each machine without GPUs (default: 1)"),
    Option("--gpu", default="V100", help="the kind of GPU, as SkyPilot names it (default: V100)"),
    Option(
        "--hours",
        type=positive,
        default=24,
        help="the time limit of the job in hours (default: 24)",
    ),
    Option("--image", default="", help="the image of the container, for Kubernetes"),
)
def run(options: Options) -> None:
    """Write a job file for a scheduler to standard output."""
    from dragoman.cluster.schedulers import SCHEDULERS, ScheduledJob
    from dragoman.recipe.recipe import load_recipe

    recipe = load_recipe(options.recipe, options.overrides)
    for override in options.overrides:
        if _PASSWORD.search(override):
            raise ConfigError(
                "the password in this address would stand in the file",
                place=f"--set {override.partition('=')[0].strip()}",
                remedy="write the address into the recipe",
            )
    if options.gpus > 0 and options.slots:
        raise ConfigError(
            "a machine trains on its GPUs or on its processors",
            place=f"--gpus {options.gpus} --slots {options.slots}",
            remedy="leave one of the two out",
        )
    job = ScheduledJob(
        name=options.name or recipe.name.lower().replace("_", "-"),
        recipe=options.recipe,
        folder=PurePosixPath(options.folder),
        nodes=options.nodes,
        gpus=options.gpus,
        ranks=options.gpus or options.slots or 1,
        hours=options.hours,
        gpu=options.gpu,
        image=options.image,
        overrides=options.overrides,
    )
    sys.stdout.write(SCHEDULERS[options.kind](job))
