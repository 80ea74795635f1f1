"""ttrpc over NRI's multiplexed connection: bytes in, calls out, and back. No sockets, clocks or files here.

mux      one byte stream carries several connections, cut into frames of at most 4096 bytes
frame    one connection carries ttrpc frames
session  frames become calls that we serve and answers to calls that we made
"""
