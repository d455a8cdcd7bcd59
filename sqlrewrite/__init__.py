"""SQL text in, values out: which statements are ours, and what they say.

Nothing here touches a socket, a clock or a server. A statement passes through at most two steps:
`classify` looks at its first keyword (microseconds, whatever its length), and only a statement
that is ours goes on to `stream.parse_stream` or `ack.parse_ack`. Recognising too little is always
safe, because MySQL answers 1064 to every statement of ours; recognising too much is not, so that
all doubt is resolved towards the server.
"""
