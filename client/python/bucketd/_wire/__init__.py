"""Messages and stubs of the wire contract, generated from proto/ by client/python/generate_wire.py."""
