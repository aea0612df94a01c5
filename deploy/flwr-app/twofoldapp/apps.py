"""The two components; Flower looks for assignments, an import alone is not found."""

from twofold.engines.flower import app

server = app.server
client = app.client
