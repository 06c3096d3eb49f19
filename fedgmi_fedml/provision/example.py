"""A project file to begin with: ``fedgmi provision example > project.yaml``."""

from __future__ import annotations

EXAMPLE = """\
# A federation over a network, as its operator describes it:  fedgmi provision project.yaml
# Run that again after every change; what is still good stays as it is.
federation: lung-ct              # letters, digits, dots, dashes: names the federation in every certificate
operator: Study office           # who signs the roster; silos hear this operator's fingerprint by telephone
config: config.yaml              # training configuration, relative to this file; every kit holds a copy
validity_days: 365               # of certificates and roster; renewed by running the command again in the last 30

server:
  address: fed.example.org:8890  # what silos dial: the only port that has to be open, and only on the server
  bind: 0.0.0.0:8890             # where the server listens
  names: [10.1.2.3]              # further names and addresses under which silos may reach it

# identity: request   the silo makes its own keys, and they never leave it (fedgmi provision request)
# identity: make      the operator makes them: for trials on one machine
# Contributors count by organisation. train_args.client_num_in_total must be the number of silos.
silos:
  - {name: north, organisation: North Hospital, identity: request}
  - {name: south, organisation: South Hospital, identity: request}
  - {name: east, organisation: East Clinic, identity: request}
  - {name: west, organisation: West Clinic, identity: request}
"""
