"""Translations to people and programs.

sentences          where a sentence of running text ends
layout             a line or a document -> what is translated and what is kept
torch_engine       search with PyTorch, where CTranslate2 is not to be had
engines            the engine for a run or a bundle
translator         texts -> rows of pieces -> texts, streamed in bounded memory
files              a file translated; broken off at any moment, it goes on where it stopped
translate          a stream, a file, or line by line at a terminal
aside              work on long texts in threads, so that nobody waits for it
batcher            requests of many clients -> batches
protocol           what a connection may take: bytes, time, places
limits             what a request may take: size, time, token, who may send it
form               the fields of a body: JSON or a form
metrics            what the server counts
schemas            requests and answers
json_route         bytes -> request, answer -> bytes
app                the HTTP interface
libretranslate     the same for clients of LibreTranslate
page/              the page where people translate
server             from options to a server that listens, and its end
"""
