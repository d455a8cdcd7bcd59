"""The data pipeline on Spark: an ordinary client of the proxy, which imports nothing of it.

`endpoint` says where the proxy is and how to reach it, from Python and by JDBC; `table` what a message table looks
like; `enqueue` fills one from any DataFrame.
"""
