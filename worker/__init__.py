"""Agents that work inside sandboxes: the loop, its parts, and the doors to it."""
