"""Parallel text in, a measured translation model out.

    import dragoman

    run = dragoman.train("demo", progress=True)
    dragoman.evaluate(run).scores["bleu"]
    dragoman.translate(run, ["Click the button."])
    dragoman.report(run)

The packages in the order the data meets them; imports go up this list, never down:

base           errors, units, settings and files, which every other part uses
telemetry      the events of runs, as facts
corpus         text files -> shards
data           shards -> batches
model          batches -> logits -> loss; and back to text
distributed    the processes that train together; one gradient out of theirs
training       gradients -> checkpoint
evaluation     checkpoint -> scores
recipe         the sections composed, estimates of a run, the directory of a run
cluster        hosts and plans
reporting      events -> answers
watch          the same facts while a run goes on
importing      models of other tools become ours
formats        models in formats of other programs
inference      models translate and score lines, files and documents
serve          translations over HTTP, and a page
run            the whole run in one module; one of its training processes; budgets
api            the functions that scripts and notebooks import from here
builds         two languages and a budget -> corpora, stages, a model to serve
cli            the functions as commands
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dragoman.base.version import VERSION as __version__  # noqa: N811

if TYPE_CHECKING:
    from dragoman.api.alignment import Aligned, align
    from dragoman.api.choosing import Chosen, choose
    from dragoman.api.comparison import Comparison, compare
    from dragoman.api.confidence import calibrate
    from dragoman.api.distillation import Distilled, distill
    from dragoman.api.exam import Exam, exam
    from dragoman.api.machines import doctor, jobs
    from dragoman.api.records import inventory, plan, read_events, report, status
    from dragoman.api.scoring import Scored, score
    from dragoman.api.synthetic import Synthesized, synthesize
    from dragoman.api.taught import Taught, ask_teacher
    from dragoman.api.training import (
        Evaluation,
        average,
        evaluate,
        load_recipe,
        prepare,
        recipes,
        run_recipe,
        sample_text,
        stop,
        train,
    )
    from dragoman.api.translation import (
        Translator,
        export,
        import_model,
        push,
        translate,
        translate_file,
    )
    from dragoman.api.worth import Worth, worth
    from dragoman.base.errors import (
        CheckpointError,
        ConfigError,
        CorpusError,
        DivergenceError,
        DragomanError,
        MachineError,
        TrainingError,
    )
    from dragoman.builds.build import Built
    from dragoman.builds.interface import build
    from dragoman.distributed.launch import InterruptedRunError
    from dragoman.evaluation.documents import DocumentScores, score_documents
    from dragoman.inference.translator import Translation
    from dragoman.recipe.recipe import Recipe
    from dragoman.recipe.run_directory import RunDirectory
    from dragoman.telemetry.events import Event

__all__ = [
    "Aligned",
    "Built",
    "CheckpointError",
    "Chosen",
    "Comparison",
    "ConfigError",
    "CorpusError",
    "Distilled",
    "DivergenceError",
    "DocumentScores",
    "DragomanError",
    "Evaluation",
    "Event",
    "Exam",
    "InterruptedRunError",
    "MachineError",
    "Recipe",
    "RunDirectory",
    "Scored",
    "Synthesized",
    "Taught",
    "TrainingError",
    "Translation",
    "Translator",
    "Worth",
    "__version__",
    "align",
    "ask_teacher",
    "average",
    "build",
    "calibrate",
    "choose",
    "compare",
    "distill",
    "doctor",
    "evaluate",
    "exam",
    "export",
    "import_model",
    "inventory",
    "jobs",
    "load_recipe",
    "plan",
    "prepare",
    "push",
    "read_events",
    "recipes",
    "report",
    "run_recipe",
    "sample_text",
    "score",
    "score_documents",
    "status",
    "stop",
    "synthesize",
    "train",
    "translate",
    "translate_file",
    "worth",
]

_MODULES = {
    "api.alignment": ("Aligned", "align"),
    "api.choosing": ("Chosen", "choose"),
    "api.comparison": ("Comparison", "compare"),
    "api.confidence": ("calibrate",),
    "api.distillation": ("Distilled", "distill"),
    "api.exam": ("Exam", "exam"),
    "api.machines": ("doctor", "jobs"),
    "api.records": ("inventory", "plan", "read_events", "report", "status"),
    "api.scoring": ("Scored", "score"),
    "api.synthetic": ("Synthesized", "synthesize"),
    "api.taught": ("Taught", "ask_teacher"),
    "api.training": (
        *("Evaluation", "average", "evaluate", "load_recipe", "prepare", "recipes"),
        *("run_recipe", "sample_text", "stop", "train"),
    ),
    "api.translation": (
        *("Translator", "export", "import_model", "push", "translate", "translate_file"),
    ),
    "api.worth": ("Worth", "worth"),
    "base.errors": tuple(
        name for name in __all__ if name.endswith("Error") and name != "InterruptedRunError"
    ),
    "builds.build": ("Built",),
    "builds.interface": ("build",),
    "distributed.launch": ("InterruptedRunError",),
    "evaluation.documents": ("DocumentScores", "score_documents"),
    "recipe.recipe": ("Recipe",),
    "recipe.run_directory": ("RunDirectory",),
    "inference.translator": ("Translation",),
    "telemetry.events": ("Event",),
}
"""Imported when they are first used, since some of them import torch."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'dragoman' has no attribute {name!r}")
    return getattr(import_module(f"dragoman.{module}"), name)


def __dir__() -> list[str]:
    return __all__
