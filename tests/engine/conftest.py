"""The tiny pair, for tests that need whole models."""

from tests.support.models import tiny_pair

__all__ = ["tiny_pair"]
