"""Compiled masks in other libraries: each module imports its library, which must be installed."""
