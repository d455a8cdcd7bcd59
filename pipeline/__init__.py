"""The data pipeline on Spark: an ordinary client of the proxy, which imports nothing of it.

`endpoint` says where the proxy is and how to reach it, from Python and by JDBC; `table` what a message table looks
like; `enqueue` fills one from any DataFrame. `datasource` is `format("ackstream")`: `consume` reads a queue as a stream
or as it stands, with `claims` (what is in a batch), `holding` (the driver's hold on it), `messages` (all statements)
and `rows` (text to Arrow); `sink` writes to one; `options` reads what either is told. `archive` takes
acknowledged rows away into files. The command lines, `command` and `archive_command`, share `commands`.
"""
