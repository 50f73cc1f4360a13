"""The functions that scripts and notebooks import from `dragoman`; the commands call them too.

training      load_recipe, prepare, train, evaluate
translation   Translator, translate, export, import_model, push
comparison    compare
synthetic     synthesize, score
distillation  distill
records       plan, report, read_events
notebook      progress and reports inside Jupyter
arguments     checks arguments before a function begins

Nothing is printed unless `progress=True` asks for it. Whatever goes wrong is a `DragomanError`.
"""
