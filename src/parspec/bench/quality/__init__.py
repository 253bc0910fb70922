"""Accuracy as measured: tasks, the running of generated code, and comparisons between settings."""
