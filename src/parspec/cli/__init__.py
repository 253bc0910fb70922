"""The command line: ``parspec pull | generate | chat``."""

from parspec.cli.app import main

__all__ = ["main"]
