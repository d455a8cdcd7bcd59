"""The dispatcher of one message table: which stream gets which message, and when.

All modules are pure: an event and the time go in, effects come out. They use no socket, no
clock, no SQL and no thread. They import `engine.model` and each other, and nothing else of this
project.
"""
