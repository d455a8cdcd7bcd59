"""The data pipeline on Spark: an ordinary client of the proxy, of which it imports nothing.

Programs import `endpoint` (where the proxy is, and how to connect to it), `datasource`
(`format("ackstream")`), `errors`, and what the packages `enqueue`, `archive` and `report` export.
All other modules are internal.
"""
