"""Measurements as a product feature: ``parspec bench``."""
