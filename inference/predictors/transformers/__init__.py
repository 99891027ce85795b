"""Adapters of Hugging Face models in a folder: texts, images, recordings, and the predictors around them."""
