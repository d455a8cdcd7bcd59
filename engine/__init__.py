"""The queue engine: a pure dispatcher per message table, and the thin shell that runs it on MySQL."""
