"""Experiments: each a command that writes its numbers as JSON and its picture from them (``python -m experiments --list``)."""
