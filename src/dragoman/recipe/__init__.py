"""What a run is asked for, what it will take, and its directory (never imports torch).

recipe          the sections of all parts, composed; the shipped recipes
errors          a mistake in a recipe in words, with line and remedy
estimate        parameters, arithmetic, memory and disk of a recipe
run_directory   one directory holds all of a run
shipped/        recipes that come with dragoman, and the demo's text
"""
