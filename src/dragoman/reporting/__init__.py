"""Events -> answers (never imports torch).

facts         the measurements of a run, or of one of its configurations, typed; its wall clock,
              without the time between lives
record        intervals as arrays [interval, rank]
configurations  the same ranks, hosts, devices and link; and the answers for each
sampling, log, reading   the events of a run directory -> facts; samples -> joules and shares
imported      events that only a run of another tool has
trend         slopes with confidence intervals, what is beyond chance
measures      numbers that several questions need: tokens per second, MFU, scaling, waiting
periods       since when something is so, and until when
pauses        whether a rank stood still; `training.pause_watch` notices it while it lasts
stragglers    which ranks come later than the others, since when and why
verdict       an answer with its evidence
checks        the table of all that a report looks for: twelve questions, then faults
scores        whether a run translates, by its loss and BLEU; all scores as rows of evidence
learning      is it trained, does it overfit
speed         the parts of a step, whether the processors are busy
network       is the network the bottleneck
learning_rate  what the schedule does
cost          machine-hours and money; adds up the energy of the samples
totals        duration, corpus and checkpoints
faults        what the rows of faults measure, and who has them
comparison, comparison_page   runs beside each other
cleaning      the page of dropped pairs
svg, plots    plots, and their self-contained pictures
document      what a page shows, and its HTML and Markdown
render        what the report of a run shows, as a document and as JSON
"""
