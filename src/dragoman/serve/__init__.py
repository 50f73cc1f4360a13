"""A server that translates, for people and programs.

batcher       requests of many clients -> batches
models        the models of a server, and how a text goes through one or two of them
directions    what translates a text: by the languages that were named or detected
guard         who may ask, and how much: token, Host, Origin, sizes, numbers, times
limits        what a server allows, and how its user writes that
bodies        bodies of requests, JSON and forms -> fields -> models
libretranslate  the routes of LibreTranslate
metrics       the counters of the server
description   the description of the interface, in OpenAPI
app           our own routes
page/         the page where people translate
listening     the socket and the uvicorn server, which ends at a signal
server        `dragoman serve`: from its options to a server that listens
"""
