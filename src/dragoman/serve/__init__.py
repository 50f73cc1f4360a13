"""Translation for people and programs.

text          a line, a document or markup -> parts to translate and parts to keep
documents     files of HTML, Markdown and subtitles: what of them is translated
word          documents of Word: the same
catalogue     catalogues of gettext: the same
translator    texts -> rows of pieces -> texts, streamed in bounded memory; the engine for a model
translate     `dragoman translate`: a stream, a file that goes on if broken off, a terminal
score_export  the scores of an export on a text
synthesize    monolingual text -> pairs to train on; which translations are dropped, and why
ray_nodes     lines on the nodes of a Ray cluster, in units of work
ray_unit      one such unit
batcher       requests of many clients -> batches
models        the models of a server, and how a text goes through one or two of them
directions    what translates a text: by the languages that were named or detected
guard         who may ask, and how much: token, Host, Origin, sizes, numbers, times
bodies        bodies of requests, JSON and forms -> fields -> models
libretranslate  the routes of LibreTranslate
metrics       the counters of the server
description   the description of the interface, in OpenAPI
app           our own routes
page/         the page where people translate
listening     the socket and the uvicorn server, which ends at a signal
server        `dragoman serve`: from its options to a server that listens
"""
