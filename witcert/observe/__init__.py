"""Meter schemes on recorded attention, and report what came out."""
