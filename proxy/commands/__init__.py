"""Commands for people and scripts: ordinary clients of a proxy or a server, with the rights of their
account."""
