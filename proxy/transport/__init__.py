"""How bytes travel: TLS on either leg, certificates, unix sockets, the PROXY protocol, addresses.

It imports the settings and `proxy.wire`.
"""
