"""What several folders need: message tables and their rows, statements about messages, ranges of
ids, connections, and what the command lines share.

It imports `endpoint` and `errors`, and no other folder.
"""
