"""`dragoman plan`: time and cost of a run on given hosts, before any machine is rented."""

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
    "Predict the seconds per step, the hours and the cost of a run on given hosts and links, for "
    "every strategy, before any machine is rented.",
    *(RECIPE, SET),
    FROM.but(
        help="plan a training that starts from this model; its shape and vocabulary replace the "
        "recipe's"
    ),
    HOSTS,
    Option(
        "--ranks",
        help="in place of --hosts: 4 for four hosts of one rank each, 2+1 for hosts of two and "
        "one, 1x8 for one host of eight",
    ),
    Option(
        "--link",
        help="the link of each host: the rate of its port (100Mbit, 1Gbit), or a measured one "
        "(12MB/s)",
    ),
    Option("--gpu", help="the device of every rank, such as v100 or cpu"),
    Option(
        "--gpu-link",
        help="the link between GPUs of one host: nvlink1 to nvlink5, pcie3 to pcie5, none, 200GB/s",
    ),
    Option(
        "--compute",
        help="the mean compute time of a rank in a step, such as 0.25s, measured while all ranks "
        "work and without waits; plan adds the wait for the slowest GPU",
    ),
    PRICE.but(help='the price of one host for an hour, such as "3 USD"'),
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
