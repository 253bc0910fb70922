"""The command line: ``parspec pull | generate | chat | serve | bench``."""

from parspec.cli.app import main

__all__ = ["main"]
