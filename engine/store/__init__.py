"""The engine's access to the database: the port, and its implementation on MySQL and MariaDB.

`port` defines what a store does. All SQL is in queries.sql. It imports the engine's `catalog`,
`keys`, `quoting`, `packets` and `model`.
"""
