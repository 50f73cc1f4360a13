"""Models of other tools -> our model and vocabulary. transformers is not needed.

config      config.json and generation_config.json -> the sections model and search of a recipe
weights     model.safetensors -> our weights; views of our weights under transformers' names
tokenizer   SentencePiece models and lists of pieces -> a file of our vocabulary for each side
folder      a folder in Hugging Face form as a whole
"""
