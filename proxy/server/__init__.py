"""The listening sockets, all sessions, and the admin port."""
