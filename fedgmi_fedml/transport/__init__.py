"""How messages travel between one server and its silos: whole, in order, once each, whatever the network does.

``api`` is the door: two small protocols, which the federation's processes are written against. ``grpc_server`` and
``grpc_silo`` carry them over mutual TLS, ``memory`` within one process with faults injected, and FedML's adapter over
FedML's transports.
"""
