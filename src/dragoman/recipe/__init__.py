"""Recipes, estimates of the needs of a run, and the directory of a run (never imports torch).

recipe          the sections of all parts, composed; the shipped recipes; mistakes in words
text_size       pairs and bytes of the text, before it is prepared
estimate        parameters, arithmetic, memory and disk of a recipe
budget          a budget as it is typed, and the keys of a recipe that it may fill in
run_directory   one directory, with a name of its own, holds all of a run
shipped/        recipes that come with dragoman, and the demo's text
"""
