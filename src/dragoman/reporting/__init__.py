"""Events -> answers (never imports torch).

log, reading     the events of a run directory -> facts
record           intervals as arrays [interval, rank]; marks the warm-up after every start
sampling         samples of machines -> means, shares, and energy: watts times seconds
facts            the measurements of a run, or of one of its configurations, typed
configurations   the same ranks, hosts, devices and link; and the answers for each
imported         events that only a run of another tool has
trend            slopes with confidence intervals, what is beyond chance
measures         numbers that several questions need: tokens per second, MFU, scaling, waiting;
                 intervals without warm-ups
periods          since when something is so, and until when
pauses           whether a rank stood still; `training.pause_watch` notices it while it lasts
stragglers       which ranks come later than the others, since when and why, from the phases that
                 `training.interval` recorded; `training.guard` alerts while the run lasts
verdict          an answer with its evidence
checks           the table of all that a report looks for: twelve questions, then faults
scores           whether a run translates, by its loss and BLEU; all scores as rows of evidence
learning         is it trained, does it overfit; their limits
worth            what more training, or more text, would gain
speed            the parts of a step, whether the processors are busy
network          is the network the bottleneck; the two parts of a wait, `sync_s` and the wire, come
                 from `training.interval`
learning_rate    what the schedule does
cost             machine-hours, money and the kWh of all samples, in words
totals           duration, corpus and checkpoints
faults           what the rows of faults measure, and who has them
comparison, comparison_page   runs beside each other, as `dragoman report A B` shows them;
                 `dragoman compare`, whether one of two models is better, is `evaluation.paired`
cleaning         the page of dropped pairs
svg, plots       plots, and their self-contained pictures
render           the report of a run: its sections and files; its view in a terminal is
                 `cli.report_view`
document         sections, tables and answers as HTML and Markdown; knows no run
"""
