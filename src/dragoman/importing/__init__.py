"""Models in Hugging Face form <-> our model and vocabulary. transformers is not needed.

config      config.json and generation_config.json -> the sections model and search of a recipe
weights     model.safetensors of others -> our weights
tokenizer   SentencePiece models and lists of pieces -> a file of our vocabulary for each side
folder      a folder in Hugging Face form as a whole
"""
