"""Synthetic demo corpora, for a machine with no data and no network.

No text is real. The corpora are English-German pairs from a small synchronous grammar
(only the English for language modelling), and news-like articles with highlights about
invented events. Measurements on the corpora are demonstrations, not results on WMT or
CNN/DailyMail.
"""
