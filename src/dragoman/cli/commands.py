"""Every command: the function that it is, the one that shows the result, and its parts.

The groups and their order are those of `dragoman --help`.
"""

from __future__ import annotations

from typing import Final

from dragoman.cli.parser import Command

GROUPS: Final = {
    "make a model": {
        "run": Command(
            "api.training:run_recipe",
            "cli.views:show_run",
            parts={
                "--dry-run": Command("cli.dry_run:dry_run"),
                "--recipes": Command("api.training:recipes", "cli.views:show_recipes"),
                "--sample": Command("api.training:sample_text", "cli.views:show_sample"),
            },
        ),
        "build": Command(
            "builds.interface:build",
            "builds.interface:show_build",
            parts={
                "--dry-run": Command("builds.interface:plan_build"),
                "--list": Command("builds.interface:list_corpora", "builds.interface:show_corpora"),
            },
        ),
        "prepare": Command("api.training:prepare", "cli.views:show_prepared"),
        "train": Command(
            "api.training:train",
            "cli.views:show_trained",
            parts={
                "--dry-run": Command("cli.dry_run:dry_run"),
                "--stop": Command("api.training:stop", "cli.views:show_stopped"),
            },
        ),
        "evaluate": Command("api.training:evaluate"),
        "compare": Command("api.comparison:compare", "cli.views:show_comparisons"),
        "exam": Command("api.exam:exam", "cli.views:show_exams"),
        "calibrate": Command("api.confidence:calibrate", "cli.views:show_calibrated"),
        "distill": Command("api.distillation:distill", "cli.views:show_distilled"),
        "synthesize": Command(
            "api.synthetic:synthesize",
            "cli.views:show_synthesized",
            parts={"--teacher": Command("api.taught:ask_teacher", "cli.views:show_taught")},
        ),
        "score": Command("api.scoring:score", "cli.views:show_scored"),
        "choose": Command("api.choosing:choose", "cli.views:show_chosen"),
        "align": Command("api.alignment:align", "cli.views:show_aligned"),
    },
    "use a model": {
        "translate": Command("api.translation:translate_file"),
        "serve": Command("api.translation:serve"),
        "export": Command(
            "api.translation:export",
            "cli.views:show_exported",
            parts={
                "--push": Command("api.translation:push", "cli.views:show_pushed"),
                "--average": Command("api.training:average", "cli.views:show_averaged"),
            },
        ),
        "import": Command("api.translation:import_model", "cli.views:show_imported"),
    },
    "plan and examine": {
        "plan": Command("api.records:plan", "cli.views:show_plan"),
        "doctor": Command("api.machines:doctor", "cli.views:show_examination"),
        "report": Command(
            "api.records:report",
            "cli.views:show_report",
            parts={
                "--status": Command("api.records:status", "cli.views:show_states"),
                "--follow": Command("api.records:follow_report", "cli.views:show_report"),
            },
        ),
        "watch": Command("api.records:watch"),
        "worth": Command("api.worth:worth", "cli.views:show_worth"),
        "inspect": Command("api.records:inventory", "cli.views:show_inventory"),
    },
    "use several machines": {
        "setup": Command("api.machines:setup"),
        "jobs": Command("api.machines:jobs", "cli.views:show_text"),
        "join": Command("api.machines:join", "cli.views:show_trained"),
    },
}
COMMANDS: Final = {name: one for group in GROUPS.values() for name, one in group.items()}


def command_of(function: str) -> Command | None:
    """The command, or the part of one, whose function has this name."""
    several = [one for whole in COMMANDS.values() for one in (whole, *whole.parts.values())]
    return next((one for one in several if one.function.partition(":")[2] == function), None)
