"""Which of several servers is the primary: all statements go to that one.

`election` decides, `observation` reads the state of one server, and `watch` does both as long as
the proxy runs.
"""
