"""Folders of T5 models as Hugging Face's transformers writes them, without it."""
