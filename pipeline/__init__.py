"""The data pipeline on Spark: an ordinary client of the proxy, which imports nothing of it.

`endpoint` says where the proxy is and how to reach it, from Python and by JDBC; `table` what a message table looks
like; `enqueue` fills one from any DataFrame. `datasource` is `format("ackstream")`: `consume` reads a queue as a stream
or as it stands, with `claims` (what is in a batch), `holding` (the driver's hold on it), `messages` (all statements)
and `rows` (text to Arrow); `sink` writes to one; `options` reads what either is told. `archive` takes
acknowledged rows away into files. `report` says what became of messages: `ranges` cuts a table, `history` reads it
once, and `archived` what was taken away, `measures` aggregates, `page` and `plots` show it. The command lines,
`command`, `archive_command` and `report_command`, share `commands`.
"""
