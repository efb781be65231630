"""Synthetic demo corpora, for a machine with no data and no network.

Nothing here is a real text: English-German pairs from a small synchronous grammar (its
English alone for language modelling), and news-like articles with highlights about
invented events. What is measured on them is a demonstration, never a result on WMT or
CNN/DailyMail.
"""
