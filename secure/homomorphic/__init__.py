"""The homomorphic data plane: the server adds up, and unmasks, what it cannot read. The only user of TenSEAL."""
