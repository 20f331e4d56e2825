"""What the two model services share: sequences, cache, scheduling, the model and sampling. torch lives only here."""
