"""Whether a table can be a queue: the directives of its comment, and the verdict on its structure
and the engine's privileges.

Pure. It imports `engine.model` and nothing else of the engine's, but `engine.dispatch` for the
longest wait.
"""
