"""The database as the engine sees it: the port, its side on MySQL and MariaDB, and its side in memory for tests.

`port` says what a store does. All SQL stands in queries.sql. It imports `engine.model`, `engine.keys`,
`engine.quoting` and `engine.catalog`.
"""
