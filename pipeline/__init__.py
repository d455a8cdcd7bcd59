"""The data pipeline on Spark: an ordinary client of the proxy, of which it imports nothing.

It is installed as `ackstream_spark`, from a distribution of its own (`pyproject.toml` beside this
file). So its imports are relative, and work under either name.

Programs import `endpoint` (where the proxy is, and how to connect to it), `datasource`
(`format("ackstream")`), `errors`, and what the packages `enqueue`, `archive` and `report` export.
All other modules are internal.
"""

__version__ = "0.1.0"
