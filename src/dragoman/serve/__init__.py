"""Translation for people and programs.

text          a line, a document or markup -> parts to translate and parts to keep
translator    texts -> rows of pieces -> texts, streamed in bounded memory; the engine for a model
translate     `dragoman translate`: a stream, a file that goes on if broken off, a terminal
score_export  the scores of an export on a text
synthesize    monolingual text -> pairs to train on; which translations are dropped, and why
ray_nodes     lines on the nodes of a Ray cluster, in units of work
ray_unit      one such unit
batcher       requests of many clients -> batches
models        the models of a server, and how a text goes through one or two of them
protocol      the limits of a connection: bytes, time, places; and how the server ends
limits        who may send a request; the limits of a client: bytes, time, waiting; the token
bodies        bodies of requests, JSON and forms: how many texts, characters and fields
refusals      answers to requests that are not valid
detection     which of the languages a text is in, and the model for it
libretranslate  the interface of LibreTranslate
metrics       the counters of the server
app           the HTTP interface
page/         the page where people translate
server        `dragoman serve`: from its options to a server that listens
"""
