"""`dragoman plan`: what a run will take on given hosts and links, before any machine is rented."""

from dragoman.cli.options import (
    FROM,
    HOSTS,
    JSON,
    PRICE,
    RECIPE,
    SET,
    Command,
    Option,
    Options,
    keywords,
)


@Command(
    "plan",
    "predict time and cost of every strategy before you rent a machine",
    "Say how many seconds a step, hours and how much money a run takes on given hosts and links, "
    "for every strategy, before any machine is rented.",
    *(RECIPE, SET),
    FROM.but(help="plan a training that starts from this model, which has the same shape"),
    HOSTS,
    Option(
        "--ranks",
        help="in place of hosts: 4 hosts of one, 2+1 for two hosts, 1x8 for one host of eight",
    ),
    Option("--link", help="100Mbit, 1Gbit for a port; 12MB/s for a measurement"),
    Option("--gpu", help="the kind of all ranks, such as v100 or cpu"),
    Option(
        "--gpu-link",
        help="between GPUs of one host: nvlink1 to nvlink5, pcie3 to pcie5, none, 200GB/s",
    ),
    Option(
        "--compute",
        help="the time that one rank computes in a step, without waiting, such as 0.25s: the mean, "
        "measured while all ranks work; the wait for the slowest GPU is added",
    ),
    PRICE.but(help='of one host for an hour, such as "3 USD"'),
    Option(
        "--like",
        metavar="RUN",
        help="a run of this model and text; its gradient noise predicts the gain of a larger batch",
    ),
    JSON,
)
def run(options: Options) -> None:
    """Print the plan, as tables or as JSON."""
    from dragoman.api.records import plan
    from dragoman.base.terminal import open_console
    from dragoman.cluster.plan_view import plan_as_json, print_plan
    from dragoman.recipe.recipe import load_recipe

    planned = plan(
        load_recipe(options.recipe, options.overrides),
        **keywords(options, "recipe", "overrides", "json"),
    )
    if options.json:
        print(plan_as_json(planned))
    else:
        print_plan(planned, open_console())
