"""FedGMI: mixture-of-experts federated learning whose every aggregation is secure."""
