"""The one control plane: who agrees on what, who holds which share, who is in the sum. Data planes plug in below it."""
