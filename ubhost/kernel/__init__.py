"""The one place for system calls: thin, named by verbs, errors raised as exceptions; convenience is out of scope."""
