"""The tiny pair that never ends an answer by itself."""

from tests.support.models import endless_pair

__all__ = ["endless_pair"]
