"""Checkpoint -> what others run.

bundle              a directory with everything a translation needs; read without torch
card                its page for people: data, licence, scores, digests
ctranslate2         the same model for CTranslate2
ctranslate2_engine  translates with it; needs no torch
ctranslate2_file    its file of weights, looked at before it is read
huggingface         the same model for transformers, with its tokenizer
onnx                the same model as two ONNX graphs: encoder, and a decoder's step
onnx_graph          a graph of operators, one by one
public              what of a run's records leaves with an export
scores              what was measured of the checkpoint
verify              an export beside our own search, before it is called done
load                a bundle as a model of ours
origin              what another training starts from
export              puts them together
"""
