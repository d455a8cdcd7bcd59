"""`format("ackstream")`: a queue as a source of Spark (`consume`) and as a sink (`sink`).

`options` checks what the user set, `claims` is the content of a batch, and `holding` keeps it
claimed while the batch runs. It imports `common`, `endpoint` and `errors`.
"""
