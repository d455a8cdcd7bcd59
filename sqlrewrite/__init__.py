"""SQL text in, values out: which statements are queue statements, and what they mean.

Nothing here touches a socket, a clock or a server. `classify` reads the head of every statement, in
microseconds whatever its length. Only a queue statement is parsed: by `ack` (ACK, NACK, EXTEND;
`settle_grammar` has their patterns), `stream` (STREAM) or `queues` (CREATE QUEUE and its family). To
take a queue statement for another one is always safe, because MySQL answers it with error 1064. The
opposite is not, so in doubt a statement goes to the server.

`lexicon` states what a blank, a comment, a string and a name are. `tokens` cuts statements by
sqlglot's tokenizer. Everything else uses these two.
"""
