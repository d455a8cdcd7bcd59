"""The engine's access to the database: the port, its implementation on MySQL and MariaDB, and one
in memory.

`port` defines what a store does. All SQL is in queries.sql. It imports the engine's `catalog`,
`keys`, `quoting`, `packets` and `model`.
"""
