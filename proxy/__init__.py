"""The proxy: the MySQL wire in front of a MySQL server, and the program `ackstream` itself."""

__version__ = "0.1.0"
