"""The dispatcher of one message table: who gets which message, and when.

Everything here is pure. An event and the time go in, effects come out; no socket, no clock, no SQL,
no thread. Modules of this package import `engine.model` and each other, and nothing else of ours.
"""
