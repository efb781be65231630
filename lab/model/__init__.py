"""Modelled times of programs that are compiled for absent devices."""
