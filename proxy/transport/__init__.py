"""How bytes travel: TLS on either connection, certificates, unix sockets, the PROXY protocol, addresses.

It imports the settings and `proxy.wire`.
"""
