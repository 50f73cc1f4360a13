"""Exports: a checkpoint in the formats of other programs.

trained_model       a checkpoint of a run as a model that translates
kinds               the facts of each format that every command needs
bundle              a folder with everything a translation needs; read without torch
card                its page for people: data, licence, scores, digests
scores              the scores of a checkpoint, from the events of its run
usage               how to call the library of a format: code for its card, with all that goes in
public              the keys of a run's records that leave with an export
ctranslate2         writes the model for CTranslate2, and checks its file before it is read
ctranslate2_engine  translates with CTranslate2; needs no torch
huggingface         a folder in Hugging Face form: writes it, and reads it without transformers
imported_form       an imported model, back in its own form for transformers
hub                 an export for transformers on the Hugging Face Hub, and the head of its card
onnx                the same model as two ONNX graphs: encoder, and a decoder's step
int8_onnx           the same graphs with matrices in int8
web                 a folder of static files that translates in a browser with them
onnxruntime_web     the library that runs them there: its files, from npm
argos               a package for Argos Translate and LibreTranslate
normalizing_pieces  a SentencePiece model with our normal form of text in it, and back
sentence_ends       an ONNX graph that finds where sentences end, for such packages
export_job          one export under way, and the interface of a format's writer
writers             the writers of all formats
check               does an export translate like our own search?
export              writes an export and compares its translations with our own
returned            a folder in Hugging Face form as our model: another tool's, or our own export
load                a run or its export as our model, to translate with or to continue training from
import_folder       writes an imported model as a folder of ours
"""
