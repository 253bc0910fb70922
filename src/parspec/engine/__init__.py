"""Requests, groups, the scheduler and the loop that runs them together."""
