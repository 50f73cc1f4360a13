"""The functions that scripts and notebooks import from `dragoman`; each command is one of them.

training      load_recipe, run_recipe, prepare, train, evaluate, stop, average, recipes, sample_text
translation   Translator, translate, translate_file, serve, export, import_model, push
comparison    compare
exam          exam
confidence    calibrate
systems       the parts of a comparison
synthetic     synthesize
scoring       score
taught        ask_teacher
alignment     align
choosing      choose
worth         worth
aligned_files  the folder of pairs that it makes, with a page of the doubtful ones
distillation  distill
teacher       the text and the speed of teacher and student
records       plan, report, status, watch, inventory, read_events
machines      doctor, setup, jobs, join
progress      what a function shows while it works
notebook      the same inside Jupyter
kinds         the kinds of parameters, for functions and for the commands made from them
checks        checks arguments before a function begins

Nothing is printed unless `progress=True` asks for it. Whatever goes wrong is a `DragomanError`. A
module imports what is heavy inside its functions, so that the help of a command is there at once.
"""
