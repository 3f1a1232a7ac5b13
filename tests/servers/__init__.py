"""Real servers for the tests, out of PyPI wheels, on free loopback ports.

`fleet` is the way in: it starts a server when the first test of a run asks for it, shares it between the
processes of that run, and lets it end with the run, however the run ends.
"""
