"""Whether a table can be a queue: the directives of its comment, its structure, and the engine's
privileges.

Pure. It imports `engine.model` and `engine.quoting`, and `engine.dispatch` for the longest wait.
"""
